//! The shape of a quota tree: which cells share a node.
//!
//! A node splits its count `m` into `round(m p)` and the rest. With an error of at most `E` rows at
//! a node, its child of share `p` is off by at most `1/2 + p E`; the root is off by nothing. To keep every leaf
//! `c` within a bound `a_c`, a node `v` of weight `w_v` must itself stay within `w_v s_v + 1/2`,
//! where `s_c = (a_c - 1/2) / w_c` at a leaf and `s_v = min(s_l, s_r) - 1 / (2 w_v)` above it, and
//! the root needs `min(s_l, s_r) >= 0`. Joining the two nodes with the most slack `s` first, as
//! Huffman does with weights, keeps the smallest slack large. A bisection finds the smallest common
//! bound that succeeds.
//!
//! Over the leaves of any tree the errors `1/2 sum(w_c / w_v)` average `1 - 1/cells`, so no shape
//! can promise less than that to every cell.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::TARGET_BITS;

/// Slack is counted in units of 2^-96: 32 bits for rows, 64 for the division by a weight.
const SLACK_BITS: u32 = 64;
const ONE: i128 = 1 << TARGET_BITS;
const RESOLUTION: i128 = ONE >> 10;

/// A node made of two others. Ids below the number of leaves are leaves, in the order given; node
/// `leaves + i` is the `i`-th join. The last join is the root.
pub type Join = (usize, usize);

/// The joins that keep `error of the leaf + bias of the leaf` smallest, and that bound, in units of
/// 2^-32 rows.
///
/// `weights` are positive row counts; `bias` is how far each leaf's count is off before the tree
/// adds its own error, in units of 2^-32 rows.
pub fn joins(weights: &[u64], bias: &[u128]) -> (Vec<Join>, i128) {
    let mut high = 2 * ONE;
    let mut best = loop {
        match join_by_slack(weights, bias, high) {
            (joins, true) => break joins,
            _ => high *= 2,
        }
    };
    let mut low = ONE / 2;
    while high - low > RESOLUTION {
        let middle = (low + high) / 2;
        match join_by_slack(weights, bias, middle) {
            (joins, true) => (best, high) = (joins, middle),
            _ => low = middle,
        }
    }
    (best, high)
}

fn join_by_slack(weights: &[u64], bias: &[u128], bound: i128) -> (Vec<Join>, bool) {
    let leaves = weights.len();
    let slack = |leaf: usize| {
        ((bound - ONE / 2 - bias[leaf] as i128) << SLACK_BITS).div_euclid(weights[leaf].into())
    };
    let mut heap: BinaryHeap<(i128, Reverse<u64>, Reverse<usize>)> =
        (0..leaves).map(|leaf| (slack(leaf), Reverse(weights[leaf]), Reverse(leaf))).collect();
    let mut joins = Vec::with_capacity(leaves.saturating_sub(1));
    let mut least = slack(0);
    while let (Some((_, Reverse(w_a), Reverse(a))), Some((s_b, Reverse(w_b), Reverse(b)))) =
        (heap.pop(), heap.pop())
    {
        least = s_b; // the second popped has the smaller slack
        let weight = w_a + w_b;
        let slack = s_b - (ONE << (SLACK_BITS - 1)).div_euclid(weight.into());
        heap.push((slack, Reverse(weight), Reverse(leaves + joins.len())));
        joins.push((a, b));
    }
    (joins, least >= 0)
}
