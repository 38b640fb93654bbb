//! A phase's rows spread over its cells by a binary tree.
//!
//! The leaves are cells with their whole numbers of rows. Of the first `m` rows that reach a node,
//! `floor(m k / n + f)` go left, where `n` is all the node gets in the phase, `k` its left child's
//! part, and `f` goes linearly from a fraction at the start of the phase to another at its end (1/2
//! would be the nearest number; see [`super::offsets`]). Both sides grow by steps of 0 or 1, so row,
//! cell and index follow from each other along one path, and at the end of the phase every cell has exactly its number.

use super::offsets::{OFFSET_BITS, offsets};
use super::shape::{self, Bias, Join};
use super::{MAX_ROWS, TARGET_BITS};

/// Marks a child that is a leaf; the rest of the number is the cell.
const LEAF: u32 = 1 << 31;
/// Marks, in a parent link, the right child.
const RIGHT: u32 = 1 << 31;
const NO_PARENT: u32 = u32::MAX;

/// Cells of at most so many rows have their errors computed row by row.
const FEW_ROWS: u64 = 64;

/// Fractional bits of the products of shares along a path: times a share they fit 127 bits.
const FACTOR_BITS: u32 = 64;

/// Of the first `m` rows, `floor((m share + offset) / whole)` go left: the fraction above, scaled
/// by a power of two that keeps `whole` within 2^63.
#[derive(Clone, Copy, Debug)]
struct Node {
    whole: u64,
    share: u64,
    offset: u64,
    left: u32,
    right: u32,
}

/// The quota tree of one phase. Cells without a row in it have no leaf.
#[derive(Clone, Debug)]
pub struct Tree {
    /// The root is the last one; a leaf when there is one cell.
    nodes: Vec<Node>,
    root: u32,
    /// Parent link per node and per cell: the node's number, with a bit for the right side.
    node_parents: Vec<u32>,
    cell_parents: Vec<u32>,
    counts: Vec<u64>,
    /// No cell is off by more than this during the phase, in units of 2^-32 rows.
    bound: u128,
}

impl Tree {
    /// A tree for `counts` rows per cell; `bias` says how far each cell is from its target at the
    /// two ends of the phase. Of several shapes, the one with the smallest bound.
    pub fn new(counts: &[u64], bias: &[Bias]) -> Self {
        let cells: Vec<u32> =
            (0..counts.len() as u32).filter(|&cell| counts[cell as usize] > 0).collect();
        assert!(!cells.is_empty(), "a phase without rows has no tree");
        let weights: Vec<u64> = cells.iter().map(|&cell| counts[cell as usize]).collect();
        let leaf_bias: Vec<Bias> = cells.iter().map(|&cell| bias[cell as usize]).collect();
        let trees = shape::LOOKS.iter().map(|&look| {
            let joins = shape::joins(&weights, &leaf_bias, look);
            let ends = [0, 1].map(|end| {
                let bias: Vec<i64> = leaf_bias.iter().map(|bias| bias[end]).collect();
                offsets(&weights, &joins, &bias)
            });
            Self::of_shape(counts, &cells, &joins, &ends, bias)
        });
        trees
            .reduce(|best, tree| if tree.bound < best.bound { tree } else { best })
            .expect("shapes")
    }

    fn of_shape(
        counts: &[u64],
        cells: &[u32],
        joins: &[Join],
        ends: &[Vec<i64>; 2],
        bias: &[Bias],
    ) -> Self {
        let link = |id: usize| match cells.get(id) {
            Some(&cell) => cell | LEAF,
            None => (id - cells.len()) as u32,
        };
        let mut tree = Self {
            nodes: Vec::with_capacity(joins.len()),
            root: link(cells.len() + joins.len() - 1),
            node_parents: vec![NO_PARENT; joins.len()],
            cell_parents: vec![NO_PARENT; counts.len()],
            counts: counts.to_vec(),
            bound: 0,
        };
        let mut rows: Vec<u64> = cells.iter().map(|&cell| counts[cell as usize]).collect();
        let mut fractions_of_nodes = Vec::with_capacity(joins.len());
        for (number, &(a, b)) in joins.iter().enumerate() {
            rows.push(rows[a] + rows[b]);
            for (child, side) in [(link(a), 0), (link(b), RIGHT)] {
                *tree.parent_of(child) = number as u32 | side;
            }
            let scale_bits = (2 * MAX_ROWS / (rows[a] + rows[b])).ilog2().min(OFFSET_BITS);
            let fractions = [0, 1].map(|end| scaled_fraction(ends[end][number], scale_bits));
            tree.nodes.push(Node {
                whole: (rows[a] + rows[b]) << scale_bits,
                share: (rows[a] << scale_bits) + fractions[1] - fractions[0],
                offset: fractions[0] * (rows[a] + rows[b]),
                left: link(a),
                right: link(b),
            });
            fractions_of_nodes
                .push(fractions.map(|fraction| (fraction << TARGET_BITS) >> scale_bits));
        }
        tree.bound = tree.proven_bound(&fractions_of_nodes, bias);
        tree
    }

    /// Rows of the whole phase per cell.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// See the field, and [`Self::proven_bound`].
    pub fn bound(&self) -> u128 {
        self.bound
    }

    /// Levels on the longest path.
    pub fn depth(&self) -> usize {
        (0..self.counts.len()).map(|cell| self.path(cell).count()).max().unwrap_or(0)
    }

    /// The cell of row `m` of the phase, and how many rows the cell had before it.
    pub fn locate(&self, mut m: u64) -> (usize, u64) {
        let mut link = self.root;
        while link & LEAF == 0 {
            let node = &self.nodes[link as usize];
            let (left, rest) = node.split(m);
            if node.goes_left(rest) {
                (link, m) = (node.left, left);
            } else {
                (link, m) = (node.right, m - left);
            }
        }
        ((link & !LEAF) as usize, m)
    }

    /// The row of the phase that is the cell's row `index`. The cell has more rows than `index`.
    pub fn row_of(&self, cell: usize, index: u64) -> u64 {
        debug_assert!(index < self.counts[cell]);
        self.path(cell).fold(index, |index, (number, right)| {
            let node = &self.nodes[number];
            let (share, offset) = if right {
                (node.whole - node.share, node.whole - 1 - node.offset)
            } else {
                (node.share, node.offset)
            };
            // The smallest m with floor(((m + 1) share + offset) / whole) > index.
            let needed = u128::from(index + 1) * u128::from(node.whole) - u128::from(offset);
            (needed.div_ceil(share.into()) - 1) as u64
        })
    }

    /// How many of the first `m` rows of the phase each cell gets, into `out`.
    pub fn counts_at(&self, m: u64, out: &mut [u64]) {
        out.fill(0);
        let mut reached = vec![0; self.nodes.len()];
        self.set_count(self.root, m, &mut reached, out);
        for number in (0..self.nodes.len()).rev() {
            let node = self.nodes[number];
            let left = node.split(reached[number]).0;
            let right = reached[number] - left;
            self.set_count(node.left, left, &mut reached, out);
            self.set_count(node.right, right, &mut reached, out);
        }
    }

    /// How many of the first `m` rows of the phase `cell` gets.
    pub fn count_of(&self, cell: usize, m: u64) -> u64 {
        if self.counts[cell] == 0 {
            return 0;
        }
        let path: Vec<(usize, bool)> = self.path(cell).collect();
        path.into_iter().rev().fold(m, |m, (number, right)| {
            let left = self.nodes[number].split(m).0;
            if right { m - left } else { left }
        })
    }

    /// The cells of rows `m..m + cells.len()` of the phase, into `cells`; one pass per node and row
    /// instead of divisions.
    pub fn fill(&self, m: u64, cells: &mut [u16], scratch: &mut Scratch) {
        let count = cells.len();
        assert!(count <= u32::MAX as usize);
        scratch.positions.clear();
        scratch.positions.extend(0..count as u32);
        scratch.pending.clear();
        scratch.pending.push((self.root, m, 0, count));
        scratch.right.resize(count, 0);
        while let Some((link, m, start, end)) = scratch.pending.pop() {
            let positions = &mut scratch.positions[start..end];
            if link & LEAF != 0 {
                let cell = (link & !LEAF) as u16;
                positions.iter().for_each(|&at| cells[at as usize] = cell);
                continue;
            }
            let node = self.nodes[link as usize];
            let (left, mut rest) = node.split(m);
            let (mut to_left, mut to_right) = (0, 0);
            for i in 0..positions.len() {
                let at = positions[i];
                let (next, wraps) = node.step(rest);
                rest = next;
                // Both writes happen, and one of the two ends advances: no branch to mispredict.
                positions[to_left] = at;
                scratch.right[to_right] = at;
                to_left += usize::from(wraps);
                to_right += usize::from(!wraps);
            }
            positions[to_left..].copy_from_slice(&scratch.right[..to_right]);
            let middle = start + to_left;
            if middle < end {
                scratch.pending.push((node.right, m - left, middle, end));
            }
            if start < middle {
                scratch.pending.push((node.left, left, start, middle));
            }
        }
    }

    fn parent_of(&mut self, link: u32) -> &mut u32 {
        match link & LEAF {
            0 => &mut self.node_parents[link as usize],
            _ => &mut self.cell_parents[(link & !LEAF) as usize],
        }
    }

    /// The numbers of the nodes above a cell, from below, each with whether the path comes from the right.
    fn path(&self, cell: usize) -> impl Iterator<Item = (usize, bool)> {
        let mut link = self.cell_parents[cell];
        std::iter::from_fn(move || {
            if link == NO_PARENT {
                return None;
            }
            let (number, right) = ((link & !RIGHT) as usize, link & RIGHT != 0);
            link = self.node_parents[number];
            Some((number, right))
        })
    }

    fn set_count(&self, link: u32, count: u64, reached: &mut [u64], out: &mut [u64]) {
        match link & LEAF {
            0 => reached[link as usize] = count,
            _ => out[(link & !LEAF) as usize] = count,
        }
    }

    /// The largest error of any cell, from the `fractions` of the splits at the two ends, in units of
    /// 2^-32 rows.
    ///
    /// Let `t` go from 0 to 1 over the phase, and let a node of `n` rows be ahead by `e`: its `m` is
    /// `n t + e`. Of these, `floor(m share / whole + f0)` go left, which is at most `f(t) + e share / whole`
    /// more than the left child's part, where `f(t)` lies between the fractions of the two ends, and less than
    /// one row below that; for the right child it is the other way round. So a cell's error is its
    /// bias and the sum over its path of `f` or `1 - f`, each times the shares of the splits below
    /// it. All of it is linear in `t`: the two ends are the worst. Roundings make the bound larger
    /// only.
    fn proven_bound(&self, fractions: &[[u64; 2]], bias: &[Bias]) -> u128 {
        let of_cell = |cell: usize| {
            if self.counts[cell] <= FEW_ROWS {
                return self.exact_bound(cell, bias[cell]);
            }
            // What one row of error at the node is at the cell.
            let mut factor = 1 << FACTOR_BITS;
            // Ahead and behind, at the start and at the end.
            let mut off = bias[cell].map(|bias| [i128::from(bias), -i128::from(bias)]);
            for (number, right) in self.path(cell) {
                for (off, fraction) in off.iter_mut().zip(fractions[number]) {
                    let fraction = u128::from(fraction);
                    let sides = [fraction + 1, (1 << TARGET_BITS) - fraction + 1];
                    let part = |side: u128| (side * factor).div_ceil(1 << FACTOR_BITS) as i128;
                    off[usize::from(right)] += part(sides[0]);
                    off[usize::from(!right)] += part(sides[1]);
                }
                let node = &self.nodes[number];
                let share = if right { node.whole - node.share } else { node.share };
                factor = (factor * u128::from(share)).div_ceil(node.whole.into());
            }
            off.into_iter().flatten().max().unwrap_or(0).unsigned_abs()
        };
        (0..self.counts.len()).map(of_cell).max().unwrap_or(0)
    }

    /// The largest error of a cell of few rows: it peaks beside each of its rows and at the ends.
    fn exact_bound(&self, cell: usize, bias: Bias) -> u128 {
        let total = i128::from(self.counts.iter().sum::<u64>());
        let own = (i128::from(self.counts[cell]) << TARGET_BITS) + i128::from(bias[0] - bias[1]);
        let error = |count: u64, row: u64| {
            let target = own * i128::from(row) / total;
            ((i128::from(count) << TARGET_BITS) + i128::from(bias[0]) - target).unsigned_abs() + 1
        };
        let rows = (0..self.counts[cell]).map(|index| (index, self.row_of(cell, index)));
        let peaks = rows.flat_map(|(index, row)| [error(index, row), error(index + 1, row + 1)]);
        peaks.chain(bias.map(|bias| bias.unsigned_abs().into())).max().unwrap_or(0)
    }
}

/// `1/2 + x` of 2^-16ths as a multiple of `2^-bits`, from 0 to below 1.
fn scaled_fraction(x: i64, bits: u32) -> u64 {
    ((x + (1 << (OFFSET_BITS - 1))) >> (OFFSET_BITS - bits)) as u64
}

impl Node {
    /// How many of the first `m` rows go left, and the remainder that decides about row `m`.
    #[inline]
    fn split(&self, m: u64) -> (u64, u64) {
        let scaled = u128::from(m) * u128::from(self.share) + u128::from(self.offset);
        let whole = u128::from(self.whole);
        ((scaled / whole) as u64, (scaled % whole) as u64)
    }

    #[inline]
    fn goes_left(&self, rest: u64) -> bool {
        rest >= self.whole - self.share
    }

    /// The remainder after one more row, and whether that row went left.
    #[inline]
    fn step(&self, rest: u64) -> (u64, bool) {
        let gap = self.whole - self.share;
        let left = rest >= gap;
        (if left { rest - gap } else { rest + self.share }, left)
    }
}

/// Buffers of [`Tree::fill`], kept between calls.
#[derive(Default, Debug)]
pub struct Scratch {
    positions: Vec<u32>,
    right: Vec<u32>,
    /// Link, rows before, and the range of `positions` of nodes still to do.
    pending: Vec<(u32, u64, usize, usize)>,
}
