//! Terms that tell one group of documents from the others: names for domains.

use std::collections::HashMap;

use rayon::prelude::*;

use super::words::{for_each_word, prefix};
use crate::threads::with_threads;
use crate::{Error, Result};

/// Bytes of a document that count.
const MAX_BYTES: usize = 1 << 13;
const SHORTEST_TERM: usize = 3;
const LONGEST_TERM: usize = 24;
/// Added to document counts, so that a term of one document never wins.
const SMOOTHING: f64 = 3.0;

/// For each group the `count` terms of highest `p ln(p / q)`, best first: `p` is the share of the
/// group's documents that hold the term, `q` that of all other documents, both smoothed (the term's
/// part of the Kullback-Leibler divergence of the two). `groups` gives each document's group;
/// documents of a group outside `0..group_count` are left out. Ties go to the term first in
/// byte order. Memory grows with the distinct words of `texts`, so pass a sample.
pub fn distinctive(
    texts: &[Option<&str>],
    groups: &[u32],
    group_count: usize,
    count: usize,
    threads: usize,
) -> Result<Vec<Vec<String>>> {
    if texts.len() != groups.len() {
        return Err(Error::invalid(format!("{} texts, {} groups", texts.len(), groups.len())));
    }
    let mut sizes = vec![0u32; group_count];
    let mut counts: HashMap<String, Vec<(u32, u32)>> = HashMap::new();
    let terms: Vec<Vec<String>> = with_threads(threads, || {
        texts.par_iter().map(|t| terms_of(t.unwrap_or_default())).collect()
    })?;
    for (terms, &group) in terms.into_iter().zip(groups) {
        let Some(size) = sizes.get_mut(group as usize) else { continue };
        *size += 1;
        for term in terms {
            let found = counts.entry(term).or_default();
            match found.iter_mut().find(|(g, _)| *g == group) {
                Some((_, n)) => *n += 1,
                None => found.push((group, 1)),
            }
        }
    }
    let documents: u32 = sizes.iter().sum();
    let mut best: Vec<Vec<(f64, &str)>> = vec![Vec::new(); group_count];
    for (term, found) in &counts {
        let everywhere: u32 = found.iter().map(|(_, n)| n).sum();
        for &(group, inside) in found {
            let size = sizes[group as usize];
            let share = |n: u32, of: u32| (f64::from(n) + 0.5) / (f64::from(of) + SMOOTHING);
            let (p, q) = (share(inside, size), share(everywhere - inside, documents - size));
            best[group as usize].push((p * (p / q).ln(), term));
        }
    }
    Ok(best
        .into_iter()
        .map(|mut ranked| {
            ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(b.1)));
            ranked.into_iter().take(count).map(|(_, term)| term.to_owned()).collect()
        })
        .collect())
}

fn terms_of(text: &str) -> Vec<String> {
    let mut terms = Vec::new();
    for_each_word(prefix(text, MAX_BYTES), |word, _| {
        let long_enough = word.len() >= SHORTEST_TERM && word.len() <= LONGEST_TERM;
        if long_enough && word.chars().all(char::is_alphabetic) {
            terms.push(word.to_owned());
        }
    });
    terms.sort_unstable();
    terms.dedup();
    terms
}

#[cfg(test)]
mod tests {
    #[test]
    fn terms_of_one_group_only_come_first() {
        let texts = ["the sun rises", "the sun sets", "the cell divides", "the cell dies", ""];
        let texts: Vec<_> = texts.iter().cycle().take(40).map(|&text| Some(text)).collect();
        let groups: Vec<u32> = [0, 0, 1, 1, 9].into_iter().cycle().take(40).collect();
        let terms = super::distinctive(&texts, &groups, 2, 2, 2).unwrap();
        assert_eq!(terms[0][0], "sun");
        assert_eq!(terms[1][0], "cell");
        assert!(super::distinctive(&texts, &groups[1..], 2, 2, 1).is_err());
    }
}
