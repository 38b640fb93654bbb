//! Where in its cycle each split of a tree starts and ends.
//!
//! The counts at the two ends of a phase are whole numbers, up to some half a row off the targets. A
//! split that rounds not at 1/2 but at another point takes such a bias off one child and gives it to the other. With
//! `x` between -1/2 and 1/2 added at the left child and taken at the right one, leaf `c` is off by at
//! most `h_c + |b_c + sum(x_v r_cv)|`, where `r_cv` is its part of the child of `v` on its path, `h_c =
//! 1/2 sum(r_cv)`, and `b_c` its bias. Each end of the phase has its own `x`; between the ends both
//! change linearly, and so does the bound. Coordinate descent lowers the largest bound: each split in turn, from the root down, takes
//! its best `x`, which is a minimum of a convex function of integers.

use super::TARGET_BITS;
use super::shape::Join;

/// Offsets are multiples of 2^-16 rows.
pub const OFFSET_BITS: u32 = 16;
const HALF: i64 = 1 << (OFFSET_BITS - 1);
const SWEEPS: usize = 12;

/// One leaf below a split: its number, and its part of the child on its side in units of 2^-32,
/// negative on the right.
struct Below {
    leaf: usize,
    part: i64,
}

/// The best offset found for every join, in units of 2^-16 rows, from -2^15 to 2^15 - 1.
pub fn offsets(weights: &[u64], joins: &[Join], bias: &[i64]) -> Vec<i64> {
    let below = leaves_below(weights, joins);
    let mut half = vec![0i64; weights.len()];
    for leaf in below.iter().flatten() {
        half[leaf.leaf] += leaf.part.abs() << (OFFSET_BITS - 1);
    }
    // In units of 2^-48 rows, so that the products below are exact.
    let mut residual: Vec<i64> = bias.iter().map(|units| units << OFFSET_BITS).collect();
    let mut offsets = vec![0; joins.len()];
    for _ in 0..SWEEPS {
        for (offset, below) in offsets.iter_mut().zip(&below).rev() {
            let bound = |x: i64| {
                let bounds = below
                    .iter()
                    .map(|b| half[b.leaf] + (residual[b.leaf] + (x - *offset) * b.part).abs());
                bounds.max().unwrap_or(0)
            };
            let (mut low, mut high) = (-HALF, HALF - 1);
            while low < high {
                let middle = (low + high).div_euclid(2);
                if bound(middle) <= bound(middle + 1) {
                    high = middle;
                } else {
                    low = middle + 1;
                }
            }
            for b in below {
                residual[b.leaf] += (low - *offset) * b.part;
            }
            *offset = low;
        }
    }
    offsets
}

fn leaves_below(weights: &[u64], joins: &[Join]) -> Vec<Vec<Below>> {
    let leaves = weights.len();
    let mut members: Vec<Vec<usize>> = (0..leaves).map(|leaf| vec![leaf]).collect();
    let mut below = Vec::with_capacity(joins.len());
    for &(left, right) in joins {
        let mut list = Vec::new();
        for (child, sign) in [(left, 1), (right, -1)] {
            let total: u128 = members[child].iter().map(|&leaf| u128::from(weights[leaf])).sum();
            list.extend(members[child].iter().map(|&leaf| {
                let part = (u128::from(weights[leaf]) << TARGET_BITS) / total;
                Below { leaf, part: sign * part as i64 }
            }));
        }
        members.push(list.iter().map(|below| below.leaf).collect());
        below.push(list);
    }
    below
}
