//! MinHash sketches whose cost hardly grows with their length: Dahlgaard, Knudsen, Thorup, "Fast
//! Similarity Sketching" (FOCS 2017).
//!
//! Round 0 throws every shingle into one of `k` bins, and each bin keeps its least value. That alone
//! is one-permutation hashing, and for a text of more than some `k ln k` shingles it is all. Bins
//! that are still empty are filled by further rounds, each with a hash function of its own; rounds
//! `k..2k` throw everything into bin `round - k`, so that none stays empty. The value of a bin is
//! thus the least of all rounds in the order (round, value), which makes two sketches agree in a
//! bin with probability J, the Jaccard similarity of the sets, as for `k` independent permutations,
//! and with a variance that is no larger. Expected cost: shingles + O(k log k).

use super::token::{BASE, mix};

/// What an empty bin holds; a shingle has this value with probability 2^-64.
pub const EMPTY: u64 = u64::MAX;

/// Above this many shingles, later rounds first drop repetitions.
const DISTINCT_ABOVE: usize = 1 << 12;

/// Makes sketches of `bins` values under `seed`.
pub struct Sketcher {
    seed: u64,
    values: Vec<u64>,
    open: Vec<bool>,
    distinct: Vec<u64>,
}

impl Sketcher {
    pub fn new(bins: usize, seed: u64) -> Self {
        Self {
            seed: mix(seed ^ BASE),
            values: vec![EMPTY; bins],
            open: vec![false; bins],
            distinct: Vec::new(),
        }
    }

    /// The sketch of a set, given with or without repetitions; all [`EMPTY`] for the empty set.
    pub fn sketch(&mut self, shingles: &[u64]) -> &[u64] {
        self.values.fill(EMPTY);
        if shingles.is_empty() {
            return &self.values;
        }
        let bins = self.values.len();
        let salt = self.salt(0);
        for &shingle in shingles {
            let (bin, value) = throw(shingle, salt, bins);
            self.values[bin] = self.values[bin].min(value);
        }
        let mut empty = self.values.iter().filter(|&&value| value == EMPTY).count();
        if empty > 0 {
            self.distinct.clear();
            self.distinct.extend_from_slice(shingles);
            if shingles.len() > DISTINCT_ABOVE {
                self.distinct.sort_unstable();
                self.distinct.dedup();
            }
        }
        let mut round = 1;
        while empty > 0 {
            empty -= if round < bins { self.scatter(round) } else { self.fill(round - bins) };
            round += 1;
        }
        self.distinct = Vec::new();
        &self.values
    }

    /// One more round over all shingles; returns how many bins it filled.
    fn scatter(&mut self, round: usize) -> usize {
        let bins = self.values.len();
        for (open, &value) in self.open.iter_mut().zip(&self.values) {
            *open = value == EMPTY;
        }
        let salt = self.salt(round);
        let mut filled = 0;
        for &shingle in &self.distinct {
            let (bin, value) = throw(shingle, salt, bins);
            if self.open[bin] {
                filled += usize::from(self.values[bin] == EMPTY);
                self.values[bin] = self.values[bin].min(value);
            }
        }
        filled
    }

    /// The closing round of one bin; returns 1 if it was empty.
    fn fill(&mut self, bin: usize) -> usize {
        if self.values[bin] != EMPTY {
            return 0;
        }
        let salt = self.salt(self.values.len() + bin);
        let least = self.distinct.iter().map(|&shingle| mix(shingle ^ salt)).min();
        self.values[bin] = least.expect("a set that is not empty");
        1
    }

    fn salt(&self, round: usize) -> u64 {
        mix(self.seed.wrapping_add((round as u64).wrapping_mul(BASE)))
    }
}

/// The bin of a shingle and its value there, from one hash: the integer and the fractional part of
/// `hash / 2^64 * bins`.
#[inline(always)]
fn throw(shingle: u64, salt: u64, bins: usize) -> (usize, u64) {
    let scaled = u128::from(mix(shingle ^ salt)) * bins as u128;
    ((scaled >> 64) as usize, scaled as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(from: u64, to: u64) -> Vec<u64> {
        (from..to).map(|i| mix(i.wrapping_mul(BASE))).collect()
    }

    /// Agreement over `trials` seeds, its mean and standard error.
    fn agreement(a: &[u64], b: &[u64], bins: usize, trials: u64) -> (f64, f64) {
        let shares: Vec<f64> = (0..trials)
            .map(|seed| {
                let mut sketcher = Sketcher::new(bins, seed);
                let first = sketcher.sketch(a).to_vec();
                let same = first.iter().zip(sketcher.sketch(b)).filter(|(x, y)| x == y).count();
                same as f64 / bins as f64
            })
            .collect();
        let mean = shares.iter().sum::<f64>() / trials as f64;
        let variance = shares.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / trials as f64;
        (mean, (variance / trials as f64).sqrt())
    }

    #[test]
    fn agreement_is_the_jaccard_similarity_for_sets_of_any_size() {
        for (union, trials) in [(10, 2000), (100, 1000), (1000, 300), (20_000, 30)] {
            for tenths in [2, 5, 8] {
                let shared = union * tenths / 10;
                let a = set(0, shared + (union - shared) / 2);
                let b: Vec<u64> = set(0, shared)
                    .into_iter()
                    .chain(set(shared + (union - shared) / 2, union))
                    .collect();
                let (mean, error) = agreement(&a, &b, 64, trials);
                let truth = tenths as f64 / 10.0;
                assert!(
                    (mean - truth).abs() < 4.0 * error + 1e-9,
                    "{union} {truth}: {mean} +- {error}"
                );
                let independent = (truth * (1.0 - truth) / 64.0 / trials as f64).sqrt();
                assert!(error < 1.2 * independent, "variance of {union} shingles at {truth}");
            }
        }
    }

    #[test]
    fn repetitions_and_order_do_not_matter() {
        let mut sketcher = Sketcher::new(128, 7);
        for count in [1, 3, 50, 5000] {
            let once = set(0, count);
            let expected = sketcher.sketch(&once).to_vec();
            let mut often: Vec<u64> = once.iter().rev().chain(&once).copied().collect();
            often.rotate_left(count as usize / 3);
            assert_eq!(sketcher.sketch(&often), expected);
        }
    }

    #[test]
    fn the_empty_set_has_an_empty_sketch() {
        assert!(Sketcher::new(16, 0).sketch(&[]).iter().all(|&value| value == EMPTY));
    }
}
