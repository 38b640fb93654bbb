//! LSH banding: documents that agree in all rows of at least one band are candidates.

use crate::{Error, Result};

use super::token::{BASE, mix};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Banding {
    pub bands: usize,
    pub rows: usize,
}

/// What a missed pair costs in units of a candidate that the text refutes. A refuted candidate
/// costs microseconds; a missed pair stays in the data.
const MISS_WEIGHT: f64 = 250.0;

/// Points of the midpoint rule for the error integrals.
const STEPS: usize = 512;

impl Banding {
    /// The probability that a pair of similarity `s` becomes a candidate: `1 - (1 - s^rows)^bands`.
    pub fn hit_rate(self, s: f64) -> f64 {
        1.0 - (1.0 - s.powi(self.rows as i32)).powi(self.bands as i32)
    }

    /// Bins of the sketch; none is left unused.
    pub fn bins(self) -> usize {
        self.bands * self.rows
    }

    /// Expected share of false candidates below and of missed pairs above `threshold`, for
    /// similarities spread evenly over 0..1 (the integrals of the S-curve).
    pub fn errors(self, threshold: f64) -> (f64, f64) {
        let integral = |from: f64, to: f64, f: &dyn Fn(f64) -> f64| {
            let step = (to - from) / STEPS as f64;
            (0..STEPS).map(|i| f(from + (i as f64 + 0.5) * step) * step).sum::<f64>()
        };
        let candidates = integral(0.0, threshold, &|s| self.hit_rate(s));
        let missed = integral(threshold, 1.0, &|s| 1.0 - self.hit_rate(s));
        (candidates, missed)
    }

    /// The key of one band of a sketch.
    #[inline]
    pub fn key(self, sketch: &[u64], band: usize) -> u64 {
        let rows = &sketch[band * self.rows..(band + 1) * self.rows];
        mix(rows
            .iter()
            .fold(band as u64, |key, &row| (key.rotate_left(29) ^ row).wrapping_mul(BASE)))
    }
}

/// The banding of at most `bins` bins with the least expected error at `threshold`.
///
/// At a threshold of 1 only equal sets count, which the first band already shows.
pub fn optimal(threshold: f64, bins: usize) -> Result<Banding> {
    if !(threshold > 0.0 && threshold <= 1.0) {
        return Err(Error::invalid(format!("threshold {threshold}: expected 0 < threshold <= 1")));
    }
    if bins == 0 {
        return Err(Error::invalid("permutations 0: expected at least 1"));
    }
    let mut best = (f64::INFINITY, Banding { bands: 1, rows: bins });
    for rows in 1..=bins {
        let banding = Banding { bands: bins / rows, rows };
        let (candidates, missed) = banding.errors(threshold);
        let error = candidates + MISS_WEIGHT * missed;
        if error < best.0 {
            best = (error, banding);
        }
    }
    Ok(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_at_the_threshold_are_rarely_missed() {
        for threshold in [0.5, 0.6, 0.7, 0.8, 0.9, 0.95] {
            let banding = optimal(threshold, 256).unwrap();
            println!(
                "{threshold}: {banding:?} {:?} {}",
                banding.errors(threshold),
                banding.hit_rate(threshold)
            );
            assert!(banding.hit_rate(threshold) > 0.97, "{threshold}: {banding:?}");
            assert!(banding.bins() <= 256);
        }
    }

    #[test]
    fn any_threshold_and_length_has_a_banding() {
        for bins in [1, 2, 7, 128] {
            for threshold in [1e-9, 0.01, 0.5, 1.0] {
                let banding = optimal(threshold, bins).unwrap();
                assert!(banding.bins() >= 1 && banding.bins() <= bins);
            }
        }
        for threshold in [0.0, -1.0, 1.1, f64::NAN] {
            assert!(optimal(threshold, 128).is_err());
        }
        assert!(optimal(0.5, 0).is_err());
    }

    #[test]
    fn the_hit_rate_rises_with_similarity() {
        let banding = optimal(0.8, 256).unwrap();
        let rates: Vec<f64> = (0..=10).map(|i| banding.hit_rate(f64::from(i) / 10.0)).collect();
        assert!(rates.is_sorted() && rates[0] == 0.0 && rates[10] == 1.0);
    }
}
