//! A phase's rows spread over its cells by a binary tree.
//!
//! The leaves are cells with their whole numbers of rows. Of the first `m` rows that reach a node,
//! `floor((m k + h) / n)` go left, where `n` is all the node gets in the phase, `k` its left
//! child's part and `h = floor(n / 2)`: the nearest whole number. Both sides grow by steps of 0 or 1, so
//! row, cell and index follow from each other along one path, and at the end of the phase every
//! cell has exactly its number.

use super::shape;

/// Marks a child that is a leaf; the rest of the number is the cell.
const LEAF: u32 = 1 << 31;
/// Marks, in a parent link, the right child.
const RIGHT: u32 = 1 << 31;
const NO_PARENT: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    /// Rows that reach the node and its left child in the whole phase.
    rows: u64,
    left_rows: u64,
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
    /// A tree for `counts` rows per cell; `bias` is the larger distance of each cell from its
    /// target at the two ends of the phase, in units of 2^-32 rows.
    pub fn new(counts: &[u64], bias: &[u128]) -> Self {
        let cells: Vec<u32> =
            (0..counts.len() as u32).filter(|&c| counts[c as usize] > 0).collect();
        assert!(!cells.is_empty(), "a phase without rows has no tree");
        let weights: Vec<u64> = cells.iter().map(|&c| counts[c as usize]).collect();
        let leaf_bias: Vec<u128> = cells.iter().map(|&c| bias[c as usize]).collect();
        let (joins, _) = shape::joins(&weights, &leaf_bias);

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
        let mut rows = weights;
        for (number, &(a, b)) in joins.iter().enumerate() {
            rows.push(rows[a] + rows[b]);
            for (child, side) in [(link(a), 0), (link(b), RIGHT)] {
                *tree.parent_of(child) = number as u32 | side;
            }
            tree.nodes.push(Node {
                rows: rows[a] + rows[b],
                left_rows: rows[a],
                left: link(a),
                right: link(b),
            });
        }
        tree.bound = tree.proven_bound(bias);
        tree
    }

    /// Rows of the whole phase per cell.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// See the field: the sum of the halves along each path and the bias of its cell.
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
        self.path(cell).fold(index, |index, (node, right)| {
            let (child_rows, offset) = if right {
                (node.rows - node.left_rows, node.rows - 1 - node.rows / 2)
            } else {
                (node.left_rows, node.rows / 2)
            };
            // The smallest m with floor(((m + 1) child_rows + offset) / rows) > index.
            let needed = u128::from(index + 1) * u128::from(node.rows) - u128::from(offset);
            (needed.div_ceil(child_rows.into()) - 1) as u64
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
        let path: Vec<(&Node, bool)> = self.path(cell).collect();
        path.iter().rev().fold(m, |m, (node, right)| {
            let left = node.split(m).0;
            if *right { m - left } else { left }
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

    /// The nodes above a cell, from below, each with the side from which the path comes.
    fn path(&self, cell: usize) -> impl Iterator<Item = (&Node, bool)> {
        let mut link = self.cell_parents[cell];
        std::iter::from_fn(move || {
            if link == NO_PARENT {
                return None;
            }
            let (number, right) = ((link & !RIGHT) as usize, link & RIGHT != 0);
            link = self.node_parents[number];
            Some((&self.nodes[number], right))
        })
    }

    fn set_count(&self, link: u32, count: u64, reached: &mut [u64], out: &mut [u64]) {
        match link & LEAF {
            0 => reached[link as usize] = count,
            _ => out[(link & !LEAF) as usize] = count,
        }
    }

    /// A cell's error is the sum over its path of each split's rounding, at most one half, times the
    /// cell's part of the child; each term is rounded up here.
    fn proven_bound(&self, bias: &[u128]) -> u128 {
        let half = 1u128 << (super::TARGET_BITS - 1);
        let of_cell = |cell: usize| {
            let splits = self.path(cell).map(|(node, right)| {
                let child = if right { node.rows - node.left_rows } else { node.left_rows };
                (half * u128::from(self.counts[cell])).div_ceil(child.into())
            });
            bias[cell] + splits.sum::<u128>()
        };
        (0..self.counts.len()).map(of_cell).max().unwrap_or(0)
    }
}

impl Node {
    /// How many of the first `m` rows go left, and the remainder that decides about row `m`.
    #[inline]
    fn split(&self, m: u64) -> (u64, u64) {
        let scaled = u128::from(m) * u128::from(self.left_rows) + u128::from(self.rows / 2);
        let rows = u128::from(self.rows);
        ((scaled / rows) as u64, (scaled % rows) as u64)
    }

    #[inline]
    fn goes_left(&self, rest: u64) -> bool {
        rest + self.left_rows >= self.rows
    }

    /// The remainder after one more row, and whether that row went left.
    #[inline]
    fn step(&self, rest: u64) -> (u64, bool) {
        let sum = rest + self.left_rows;
        let wraps = sum >= self.rows;
        (if wraps { sum - self.rows } else { sum }, wraps)
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
