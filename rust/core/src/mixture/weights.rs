//! The one conversion of weights from floating point to integers.

use super::wide::mul_div_rem;
use super::{MAX_ROWS, TARGET_BITS};
use crate::{Error, Result};

/// Bits of the largest weight of a phase after conversion. With up to 2^16 cells the sum stays
/// below 2^126, and over 2^62 rows the rounding of one weight moves a target by 2^-48 rows at most.
const WEIGHT_BITS: i32 = 110;

/// The most cells of a mixture: cells are numbered in 16 bits, in shards too.
pub const MAX_CELLS: usize = 1 << 16;

/// Integers in proportion to `weights`: the largest becomes a number of 110 bits, the others are
/// exact down to 2^-57 of it and rounded to nearest (ties up) below.
///
/// Only the bits of the doubles are read, so there is no sum of floats to depend on an order. The
/// weights need not sum to one.
pub fn to_integers(weights: &[f64]) -> Result<Vec<u128>> {
    if weights.is_empty() || weights.len() > MAX_CELLS {
        return Err(Error::invalid(format!("{} cells, expected 1 to {MAX_CELLS}", weights.len())));
    }
    if let Some(cell) = weights.iter().position(|w| !w.is_finite() || *w < 0.0) {
        return Err(Error::invalid(format!(
            "weight {} of cell {cell}, expected a finite number >= 0",
            weights[cell]
        )));
    }
    let parts: Vec<(u64, i32)> = weights.iter().map(|&w| decompose(w)).collect();
    let top = parts.iter().filter(|(m, _)| *m > 0).map(|&(m, e)| bits(m) + e).max();
    let Some(top) = top else {
        return Err(Error::invalid("every weight is 0, expected a cell with a weight"));
    };
    Ok(parts.iter().map(|&(m, e)| shift_rounded(m, e + WEIGHT_BITS - top)).collect())
}

/// What each cell gets of `rows` rows, in units of 2^-32 rows; the sum is exactly `rows << 32`.
///
/// The last units go to the largest remainders, the lower cell first.
pub fn targets(weights: &[u128], rows: u64) -> Vec<u128> {
    assert!(rows <= MAX_ROWS);
    let total: u128 = weights.iter().sum();
    let units = u128::from(rows) << TARGET_BITS;
    let shares: Vec<(u128, u128)> = weights.iter().map(|&w| mul_div_rem(units, w, total)).collect();
    let mut targets: Vec<u128> = shares.iter().map(|share| share.0).collect();
    let missing = units - targets.iter().sum::<u128>();
    let mut by_remainder: Vec<usize> = (0..weights.len()).collect();
    by_remainder.sort_by_key(|&cell| (std::cmp::Reverse(shares[cell].1), cell));
    for &cell in &by_remainder[..missing as usize] {
        targets[cell] += 1;
    }
    targets
}

/// `w = mantissa * 2^exponent` exactly.
fn decompose(w: f64) -> (u64, i32) {
    let word = w.to_bits();
    let fraction = word & ((1 << 52) - 1);
    match (word >> 52) & 0x7ff {
        0 => (fraction, -1074),
        exponent => (fraction | (1 << 52), exponent as i32 - 1075),
    }
}

fn bits(m: u64) -> i32 {
    64 - m.leading_zeros() as i32
}

/// `m * 2^shift`, rounded to nearest, ties up.
fn shift_rounded(m: u64, shift: i32) -> u128 {
    match shift {
        0.. => u128::from(m) << shift,
        -64..0 => (u128::from(m) + (1u128 << (-shift - 1))) >> -shift,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_of_weights_are_kept_exactly() {
        let integers = to_integers(&[0.75, 0.1875, 0.0625, 0.0]).unwrap();
        assert_eq!(integers[0], integers[1] * 4);
        assert_eq!(integers[1], integers[2] * 3);
        assert_eq!(integers[3], 0);
    }

    #[test]
    fn denormal_and_huge_weights_convert_without_overflow() {
        let tiny = f64::from_bits(1);
        assert_eq!(to_integers(&[tiny, 0.0]).unwrap(), [1 << 109, 0]);
        assert_eq!(to_integers(&[1.0, 1e-300]).unwrap()[1], 0);
        let huge = vec![f64::MAX; MAX_CELLS];
        assert_eq!(targets(&to_integers(&huge).unwrap(), MAX_ROWS)[0], 1 << (62 + 32 - 16));
    }

    #[test]
    fn targets_add_up_to_the_rows() {
        let weights = to_integers(&[0.3, 0.3, 0.4, 1e-20]).unwrap();
        for rows in [0, 1, 7, 1 << 40, MAX_ROWS - 1, MAX_ROWS] {
            let sum: u128 = targets(&weights, rows).iter().sum();
            assert_eq!(sum, u128::from(rows) << TARGET_BITS);
        }
    }

    #[test]
    fn bad_weights_are_refused() {
        for weights in
            [vec![], vec![0.0, 0.0], vec![1.0, -0.1], vec![f64::NAN], vec![f64::INFINITY]]
        {
            assert!(to_integers(&weights).is_err(), "{weights:?}");
        }
    }
}
