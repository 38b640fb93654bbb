//! Overlap of documents with evaluation sets, in word n-grams.
//!
//! An evaluation item is the set of its distinct word n-grams (Brown et al. 2020, appendix C, use
//! n = 13); an item shorter than n words is one n-gram of its own length, if that is at least
//! [`SHORTEST`]. Documents are searched for these n-grams alone, so memory follows the evaluation
//! sets and not the corpus. Items that share boilerplate with much of the corpus (licence headers,
//! instructions) would remove it all: n-grams found in more than a given number of documents are
//! not counted as evidence.

use std::collections::HashMap;

use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::words::for_each_word;
use crate::threads::with_threads;
use crate::{Error, Result};

/// Items of fewer words say too little to be found.
pub const SHORTEST: usize = 6;

/// The n-grams of all evaluation items.
pub struct Index {
    grams: HashMap<u64, u32>,
    /// Lengths of n-grams in the index, longest first.
    lengths: Vec<usize>,
    /// The items that hold each n-gram.
    items: Vec<Vec<u32>>,
    /// The n-grams of each item.
    grams_of: Vec<Vec<u32>>,
}

/// An n-gram found in a document: its number, and where in the text (bytes) it first stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub gram: u32,
    pub start: u32,
    pub end: u32,
}

/// Why a document is contaminated: the item of which the largest share was found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    pub item: u32,
    pub share: f32,
    pub found: u32,
}

impl Index {
    pub fn new(items: &[Option<&str>], n: usize) -> Result<Self> {
        if n < SHORTEST {
            return Err(Error::invalid(format!("n = {n}: expected at least {SHORTEST} words")));
        }
        let mut index = Self {
            grams: HashMap::new(),
            lengths: Vec::new(),
            items: Vec::new(),
            grams_of: Vec::new(),
        };
        for (item, text) in items.iter().enumerate() {
            let words: Vec<u64> =
                words(text.unwrap_or_default()).into_iter().map(|w| w.0).collect();
            let length = words.len().min(n);
            let mut grams = Vec::new();
            if length >= SHORTEST {
                if !index.lengths.contains(&length) {
                    index.lengths.push(length);
                }
                for window in words.windows(length) {
                    let next = index.items.len() as u32;
                    let gram = *index.grams.entry(hash(window)).or_insert(next);
                    if gram == next {
                        index.items.push(Vec::new());
                    }
                    if index.items[gram as usize].last() != Some(&(item as u32)) {
                        index.items[gram as usize].push(item as u32);
                        grams.push(gram);
                    }
                }
            }
            index.grams_of.push(grams);
        }
        index.lengths.sort_unstable_by(|a, b| b.cmp(a));
        Ok(index)
    }

    /// Distinct n-grams.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The distinct n-grams of the index in each text, in the order of their places.
    pub fn search(&self, texts: &[Option<&str>], threads: usize) -> Result<Vec<Vec<Found>>> {
        with_threads(threads, || {
            texts.par_iter().map(|text| self.search_one(text.unwrap_or_default())).collect()
        })
    }

    fn search_one(&self, text: &str) -> Vec<Found> {
        let words = words(text);
        let hashes: Vec<u64> = words.iter().map(|word| word.0).collect();
        let mut found: Vec<Found> = Vec::new();
        for &length in &self.lengths {
            for (at, window) in hashes.windows(length).enumerate() {
                if let Some(&gram) = self.grams.get(&hash(window)) {
                    let (start, end) = (words[at].1, words[at + length - 1].2);
                    found.push(Found { gram, start, end });
                }
            }
        }
        found.sort_unstable_by_key(|found| (found.gram, found.start));
        found.dedup_by_key(|found| found.gram);
        found.sort_unstable_by_key(|found| (found.start, found.gram));
        found
    }

    /// For each document (its distinct n-grams) the item of which at least `threshold` was found.
    /// `documents_with[g]` is the number of documents that hold n-gram `g`; n-grams in more than
    /// `guard` of them count neither as found nor as part of an item. Items left without n-grams
    /// accuse nobody.
    pub fn judge(
        &self,
        documents: &[&[u32]],
        documents_with: &[u64],
        guard: u64,
        threshold: f64,
    ) -> Result<Vec<Option<Verdict>>> {
        if documents_with.len() != self.len() {
            return Err(Error::invalid(format!(
                "{} document counts for {} n-grams",
                documents_with.len(),
                self.len()
            )));
        }
        let counted = |gram: u32| documents_with[gram as usize] <= guard;
        let sizes: Vec<usize> = self
            .grams_of
            .iter()
            .map(|grams| grams.iter().filter(|&&g| counted(g)).count())
            .collect();
        Ok(documents
            .iter()
            .map(|grams| {
                let mut hits: Vec<u32> = grams
                    .iter()
                    .filter(|&&gram| counted(gram))
                    .flat_map(|&gram| self.items[gram as usize].iter().copied())
                    .collect();
                hits.sort_unstable();
                let verdicts = hits.chunk_by(|a, b| a == b).map(|run| Verdict {
                    item: run[0],
                    share: (run.len() as f64 / sizes[run[0] as usize] as f64) as f32,
                    found: run.len() as u32,
                });
                verdicts
                    .filter(|verdict| f64::from(verdict.share) >= threshold)
                    .reduce(|a, b| if b.share > a.share { b } else { a })
            })
            .collect())
    }
}

/// Hash and byte range of every word. The range of a word ends where its characters do.
fn words(text: &str) -> Vec<(u64, u32, u32)> {
    let mut out: Vec<(u64, u32, u32)> = Vec::new();
    for_each_word(text, |word, range| {
        out.push((xxh3_64(word.as_bytes()), range.start as u32, range.end as u32));
    });
    out
}

fn hash(window: &[u64]) -> u64 {
    window.iter().fold(window.len() as u64, |hash, word| {
        (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUESTION: &str = "what is the capital of the smallest country on the continent of europe";

    fn verdicts(
        items: &[&str],
        texts: &[&str],
        guard: u64,
        threshold: f64,
    ) -> Vec<Option<Verdict>> {
        let index = Index::new(&items.iter().map(|i| Some(*i)).collect::<Vec<_>>(), 8).unwrap();
        let texts: Vec<_> = texts.iter().map(|text| Some(*text)).collect();
        let found = index.search(&texts, 2).unwrap();
        let mut counts = vec![0; index.len()];
        found.iter().flatten().for_each(|f| counts[f.gram as usize] += 1);
        let grams: Vec<Vec<u32>> =
            found.iter().map(|f| f.iter().map(|f| f.gram).collect()).collect();
        let grams: Vec<&[u32]> = grams.iter().map(Vec::as_slice).collect();
        index.judge(&grams, &counts, guard, threshold).unwrap()
    }

    #[test]
    fn a_copied_item_is_found_whatever_its_case_and_marks() {
        let copy = format!("Quiz!\n{}, says A.", QUESTION.to_uppercase().replace(' ', "  "));
        let found = verdicts(
            &["something else entirely, of eight words or more", QUESTION],
            &[&copy, "an innocent text about capital cities of europe"],
            10,
            0.8,
        );
        assert_eq!(found, [Some(Verdict { item: 1, share: 1.0, found: 6 }), None]);
    }

    #[test]
    fn a_part_counts_by_its_share() {
        let part = &QUESTION[..QUESTION.len() / 2 + 12];
        assert_eq!(verdicts(&[QUESTION], &[part], 10, 0.9), [None]);
        let found = verdicts(&[QUESTION], &[part], 10, 0.3)[0].unwrap();
        assert!((0.3..0.9).contains(&found.share));
    }

    #[test]
    fn boilerplate_is_no_evidence() {
        let licence = "permission is hereby granted free of charge to any person obtaining a copy";
        let texts = vec![licence; 20];
        assert!(verdicts(&[licence], &texts, 20, 0.5).iter().all(Option::is_some));
        assert!(verdicts(&[licence], &texts, 19, 0.5).iter().all(Option::is_none));
        let both = format!("{licence} {QUESTION}");
        let mut texts = texts;
        texts.push(&both);
        let found = verdicts(&[&both], &texts, 10, 0.9);
        assert!(found[..20].iter().all(Option::is_none) && found[20].is_some());
    }

    #[test]
    fn short_items_are_found_as_a_whole_and_shorter_ones_not_at_all() {
        let texts = ["so it says: one two three four five six, and more"];
        assert!(verdicts(&["one two three four five six"], &texts, 9, 0.5)[0].is_some());
        assert_eq!(verdicts(&["one two three four five", ""], &texts, 9, 0.0), [None]);
        assert!(Index::new(&[], 3).is_err());
    }

    #[test]
    fn places_are_byte_ranges_of_the_text() {
        let index = Index::new(&[Some("äa b c d e f")], 8).unwrap();
        let text = "xx — Äa b c, d e f!";
        let found = index.search(&[Some(text), None], 1).unwrap();
        let found = found[0][0];
        assert_eq!(&text[found.start as usize..found.end as usize], "Äa b c, d e f");
    }
}
