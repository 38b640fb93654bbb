//! The exact similarity of two documents from the sets of their shingles.
//!
//! A set is the sorted vector of distinct 64-bit shingle hashes. Two different shingles share a hash
//! with probability 2^-64, so among two sets of together n shingles some pair does with probability
//! below n^2 / 2^65: 5e-12 for documents of 7,000 words each. Short of that the counts, and with
//! them every decision, are those of the sets themselves.

/// What is measured between the candidate for removal and the kept document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Shared shingles over all shingles of both.
    Jaccard,
    /// Shared shingles over those of the candidate for removal.
    Containment,
}

/// Least hashes of both sets that are compared before the whole sets are.
const PROBE: usize = 256;

/// The probe refutes a pair only this many standard errors below the threshold: one in 10^9.
const PROBE_ERRORS: f64 = 6.0;

/// Above this many elements a table for sorting by position would leave the cache.
const TABLE_MAX: usize = 1 << 16;

impl Measure {
    pub fn of(self, shared: usize, removed: usize, kept: usize) -> f64 {
        let whole = match self {
            Self::Jaccard => removed + kept - shared,
            Self::Containment => removed,
        };
        shared as f64 / whole as f64
    }

    /// The similarity of `removed` to `kept` if it is at least `threshold`. Both sets are sorted,
    /// distinct and not empty.
    pub fn at_least(self, threshold: f64, removed: &[u64], kept: &[u64]) -> Option<f64> {
        let (a, b) = (removed.len(), kept.len());
        let needed = self.needed(threshold, a, b)?;
        if self == Self::Jaccard && a.min(b) > 2 * PROBE && refuted(threshold, removed, kept) {
            return None;
        }
        let shared = shared_at_least(needed, removed, kept)?;
        Some(self.of(shared, a, b))
    }

    /// The least number of shared shingles that reaches `threshold`, if sets of these sizes can.
    fn needed(self, threshold: f64, removed: usize, kept: usize) -> Option<usize> {
        let most = removed.min(kept);
        if self.of(most, removed, kept) < threshold {
            return None;
        }
        // `of` rises with the count; a first guess by algebra is corrected by the definition itself.
        let guess = match self {
            Self::Jaccard => threshold * (removed + kept) as f64 / (1.0 + threshold),
            Self::Containment => threshold * removed as f64,
        };
        let mut needed = (guess as usize).min(most);
        while needed > 0 && self.of(needed - 1, removed, kept) >= threshold {
            needed -= 1;
        }
        while self.of(needed, removed, kept) < threshold {
            needed += 1;
        }
        Some(needed)
    }
}

/// Whether the least hashes of the union alone make `threshold` incredible.
fn refuted(threshold: f64, a: &[u64], b: &[u64]) -> bool {
    let (mut i, mut j, mut shared) = (0, 0, 0);
    for _ in 0..PROBE {
        let (x, y) = (a[i], b[j]);
        shared += usize::from(x == y);
        i += usize::from(x <= y);
        j += usize::from(y <= x);
    }
    let error = (threshold * (1.0 - threshold) / PROBE as f64).sqrt();
    (shared as f64 / PROBE as f64) < threshold - PROBE_ERRORS * error
}

/// How many elements the sorted sets share, or None as soon as `needed` is out of reach.
fn shared_at_least(needed: usize, a: &[u64], b: &[u64]) -> Option<usize> {
    const CHECK_EVERY: usize = 64;
    let (mut i, mut j, mut shared) = (0, 0, 0);
    loop {
        let steps = (a.len() - i).min(b.len() - j).min(CHECK_EVERY);
        if steps == 0 {
            return (shared >= needed).then_some(shared);
        }
        for _ in 0..steps {
            let (x, y) = (a[i], b[j]);
            shared += usize::from(x == y);
            i += usize::from(x <= y);
            j += usize::from(y <= x);
        }
        if shared + (a.len() - i).min(b.len() - j) < needed {
            return None;
        }
    }
}

/// Sorts hashes and drops repetitions. `table` is scratch space.
///
/// Hashes are uniform, so each is put near the place that its leading bits foretell, in a table at
/// most half full: expected constant work per element.
pub fn sort_distinct(hashes: &mut Vec<u64>, table: &mut Vec<u64>) {
    const FREE: u64 = u64::MAX;
    const SPILL: usize = 64;
    let count = hashes.len();
    if !(32..=TABLE_MAX).contains(&count) {
        hashes.sort_unstable();
        hashes.dedup();
        return;
    }
    let slots = (count * 2).next_power_of_two();
    let shift = 64 - slots.trailing_zeros();
    table.clear();
    table.resize(slots + SPILL, FREE);
    for &hash in hashes.iter() {
        let mut carried = hash;
        let mut at = (hash >> shift) as usize;
        loop {
            let Some(slot) = table.get_mut(at) else {
                // A crowded end of the table, or the hash that marks free slots.
                hashes.sort_unstable();
                hashes.dedup();
                return;
            };
            if *slot == carried && carried != FREE {
                break;
            }
            if *slot > carried {
                std::mem::swap(slot, &mut carried);
                if carried == FREE {
                    break;
                }
            }
            at += 1;
        }
    }
    hashes.clear();
    hashes.extend(table.iter().copied().filter(|&hash| hash != FREE));
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::token::mix;
    use super::*;

    fn slow(measure: Measure, a: &BTreeSet<u64>, b: &BTreeSet<u64>) -> f64 {
        let shared = a.intersection(b).count() as f64;
        match measure {
            Measure::Jaccard => shared / a.union(b).count() as f64,
            Measure::Containment => shared / a.len() as f64,
        }
    }

    proptest! {
        #[test]
        fn the_measure_is_that_of_the_sets(
            a in prop::collection::btree_set(0u64..60, 1..50),
            b in prop::collection::btree_set(0u64..60, 1..50),
            threshold in prop_oneof![Just(0.8), Just(1.0), 0.01..1.0f64],
        ) {
            let (x, y): (Vec<u64>, Vec<u64>) = (a.iter().copied().collect(), b.iter().copied().collect());
            for measure in [Measure::Jaccard, Measure::Containment] {
                let truth = slow(measure, &a, &b);
                let expected = (truth >= threshold).then_some(truth);
                prop_assert_eq!(measure.at_least(threshold, &x, &y), expected);
            }
        }

        #[test]
        fn large_sets_are_measured_exactly(
            shared in 0u64..3000, only_a in 300u64..900, only_b in 300u64..900,
        ) {
            let mut scratch = Vec::new();
            let mut set = |from: u64, to: u64| {
                let mut set: Vec<u64> = (0..shared).chain(from..to).map(mix).collect();
                sort_distinct(&mut set, &mut scratch);
                set
            };
            let a = set(10_000, 10_000 + only_a);
            let b = set(20_000, 20_000 + only_b);
            let truth = shared as f64 / (shared + only_a + only_b) as f64;
            for threshold in [0.2, 0.5, 0.7] {
                let expected = (truth >= threshold).then_some(truth);
                prop_assert_eq!(Measure::Jaccard.at_least(threshold, &a, &b), expected);
            }
        }

        #[test]
        fn sorting_keeps_each_hash_once(
            seeds in prop::collection::vec(0u64..500, 0..1500), extreme in any::<bool>(),
        ) {
            let mut hashes: Vec<u64> = seeds.iter().copied().map(mix).collect();
            if extreme {
                hashes.extend([u64::MAX, 0, u64::MAX]);
                hashes.extend((0..100).map(|i| u64::MAX - i));
            }
            let expected: Vec<u64> = hashes.iter().copied().collect::<BTreeSet<_>>().into_iter().collect();
            sort_distinct(&mut hashes, &mut Vec::new());
            prop_assert_eq!(hashes, expected);
        }
    }
}
