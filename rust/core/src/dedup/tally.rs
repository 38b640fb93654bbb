//! What a deduplication did, counted.

use std::collections::BTreeMap;

use super::session::{Decision, Documents, Reason};
use super::text::Kind;

/// Bins of the histogram of similarities over 0..=1.
pub const HISTOGRAM_BINS: usize = 50;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceTally {
    pub documents: u64,
    pub empty: u64,
    /// Documents with fewer tokens than a shingle, which are only compared as a whole.
    pub short: u64,
    pub removed_exact: u64,
    pub removed_fuzzy: u64,
    pub left_out: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tally {
    pub by_source: BTreeMap<String, SourceTally>,
    /// Fuzzy removals by similarity to the kept twin.
    pub histogram: [u64; HISTOGRAM_BINS],
    /// Number of clusters by size, for sizes of two and more.
    pub cluster_sizes: BTreeMap<u64, u64>,
}

pub fn tally(decisions: &[Decision], documents: &Documents<'_>) -> Tally {
    let mut by_source: BTreeMap<&str, SourceTally> = BTreeMap::new();
    let mut histogram = [0; HISTOGRAM_BINS];
    let clusters =
        decisions.iter().map(|decision| decision.cluster as usize + 1).max().unwrap_or(0);
    let mut sizes = vec![0u64; clusters];
    for (number, decision) in (0u32..).zip(decisions) {
        let counts = by_source.entry(documents.source(number)).or_default();
        counts.documents += 1;
        if decision.reason == Reason::LeftOut {
            counts.left_out += 1;
            continue;
        }
        counts.empty += u64::from(documents.kind(number) == Kind::Empty);
        counts.short += u64::from(documents.kind(number) == Kind::Short);
        sizes[decision.cluster as usize] += 1;
        match decision.reason {
            Reason::Kept | Reason::LeftOut => {}
            Reason::Exact => counts.removed_exact += 1,
            Reason::Fuzzy => {
                counts.removed_fuzzy += 1;
                let bin = (f64::from(decision.similarity) * HISTOGRAM_BINS as f64) as usize;
                histogram[bin.min(HISTOGRAM_BINS - 1)] += 1;
            }
        }
    }
    let mut cluster_sizes = BTreeMap::new();
    for size in sizes.into_iter().filter(|&size| size > 1) {
        *cluster_sizes.entry(size).or_default() += 1;
    }
    let by_source = by_source.into_iter().map(|(name, counts)| (name.to_owned(), counts)).collect();
    Tally { by_source, histogram, cluster_sizes }
}

/// Up to `count` removed documents for people to look at: fuzzy ones spread evenly over the range of
/// similarities, the most doubtful first, then one exact one.
pub fn examples(decisions: &[Decision], documents: &Documents<'_>, count: usize) -> Vec<u32> {
    let of = |reason: Reason| {
        let mut found: Vec<u32> = (0u32..)
            .zip(decisions)
            .filter(|(_, decision)| decision.reason == reason)
            .map(|(number, _)| number)
            .collect();
        found.sort_unstable_by(|&a, &b| {
            let similarity = |number: u32| decisions[number as usize].similarity;
            similarity(a)
                .total_cmp(&similarity(b))
                .then_with(|| documents.id(a).cmp(documents.id(b)))
        });
        found
    };
    let (fuzzy, exact) = (of(Reason::Fuzzy), of(Reason::Exact));
    let from_exact = exact.len().min(count.saturating_sub(fuzzy.len()).max(1)).min(count);
    let from_fuzzy = fuzzy.len().min(count - from_exact);
    let spread = |found: &[u32], count: usize| -> Vec<u32> {
        (0..count).map(|i| found[i * found.len() / count]).collect()
    };
    let mut chosen = spread(&fuzzy, from_fuzzy);
    chosen.extend(spread(&exact, from_exact));
    chosen
}
