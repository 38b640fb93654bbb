//! The shape of a quota tree: which cells share a node.
//!
//! A node splits its count `m` into `round(m p)` and the rest. With an error of at most `E` rows at
//! a node, its child of share `p` is off by at most `1/2 + p E`; the root is off by nothing. To keep
//! every leaf `c` within a bound `a_c`, a node `v` of weight `w_v` must itself stay within
//! `w_v s_v + 1/2`, where `s_c = (a_c - 1/2) / w_c` at a leaf and `s_v = min(s_l, s_r) - 1 / (2 w_v)`
//! above it, and the root needs `min(s_l, s_r) >= 0`. Joining the nodes with the most slack `s`
//! first, as Huffman does with weights, keeps the smallest slack large. A bisection finds the
//! smallest common bound that succeeds.
//!
//! Over the leaves of any tree the errors `1/2 sum(w_c / w_v)` average `1 - 1/cells`, so no shape
//! can promise less than that to every cell.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{ONE, RESOLUTION};

/// Slack is kept in units of 2^-96: 32 bits for rows, 64 for the division by a weight.
const SLACK_BITS: u32 = 64;

/// A node made of two others. Ids below the number of leaves are leaves, in the order given; node
/// `leaves + i` is the `i`-th join. The last join is the root.
pub type Join = (usize, usize);

/// How far a count is from its target at the start and at the end of a phase, in units of 2^-32
/// rows; positive where the cell is ahead.
pub type Bias = [i64; 2];

/// What a shape attends to besides weights: the second node of a join is the one among the `look`
/// with the most slack that is at most half as heavy again as the first of them, and whose bias best offsets that
/// of the node it joins; and half of its bias counts against a leaf's bound.
///
/// A split can absorb half a row of bias (see [`super::offsets`]), so a leaf that is ahead is best
/// placed beside one that is behind.
pub const LOOKS: [usize; 4] = [1, 4, 16, 64];

/// The joins for positive `weights` with the smallest common bound.
pub fn joins(weights: &[u64], bias: &[Bias], look: usize) -> Vec<Join> {
    let mut high = 2 * ONE;
    let mut best = loop {
        match join_by_slack(weights, bias, look, high) {
            (joins, true) => break joins,
            _ => high *= 2,
        }
    };
    let mut low = ONE / 2;
    while high - low > RESOLUTION {
        let middle = (low + high) / 2;
        match join_by_slack(weights, bias, look, middle) {
            (joins, true) => (best, high) = (joins, middle),
            _ => low = middle,
        }
    }
    best
}

/// Slack, weight and number of a node; the greatest has the most slack, then the least weight.
type Entry = (i128, Reverse<u64>, Reverse<usize>);

fn join_by_slack(weights: &[u64], bias: &[Bias], look: usize, bound: i128) -> (Vec<Join>, bool) {
    let leaves = weights.len();
    let slack = |leaf: usize| {
        let ahead = i128::from(largest(bias[leaf]));
        let room = bound - ONE / 2 - if look > 1 { ahead / 2 } else { 0 };
        (room << SLACK_BITS).div_euclid(weights[leaf].into())
    };
    let mut heap: BinaryHeap<Entry> =
        (0..leaves).map(|leaf| (slack(leaf), Reverse(weights[leaf]), Reverse(leaf))).collect();
    let mut biases = bias.to_vec();
    let mut joins = Vec::with_capacity(leaves.saturating_sub(1));
    let mut least = 0;
    let mut seen = Vec::with_capacity(look);
    while let Some((_, Reverse(weight_a), Reverse(a))) = heap.pop() {
        seen.extend(std::iter::from_fn(|| heap.pop()).take(look));
        let Some(&(_, Reverse(lightest), _)) = seen.first() else { break };
        let sum = |b: usize| [biases[a][0] + biases[b][0], biases[a][1] + biases[b][1]];
        let fits = |weight: u64| weight <= lightest.saturating_add(lightest / 2);
        let (at, &(slack_b, Reverse(weight_b), Reverse(b))) = seen
            .iter()
            .enumerate()
            .filter(|(_, (_, Reverse(weight), _))| fits(*weight))
            .min_by_key(|&(at, &(_, _, Reverse(b)))| (largest(sum(b)), at))
            .expect("the first one fits");
        biases.push(sum(b));
        seen.remove(at);
        heap.extend(seen.drain(..));
        let weight = weight_a + weight_b;
        least = slack_b; // the first popped has at least as much
        let slack = least - (ONE << (SLACK_BITS - 1)).div_euclid(weight.into());
        heap.push((slack, Reverse(weight), Reverse(leaves + joins.len())));
        joins.push((a, b));
    }
    (joins, least >= 0)
}

fn largest(bias: Bias) -> i64 {
    bias[0].abs().max(bias[1].abs())
}
