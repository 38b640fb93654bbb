//! The quotas of a whole run: phases of constant weights, one after another.

use super::shape::Bias;
use super::tree::{Scratch, Tree};
use super::{MAX_ROWS, TARGET_BITS, apportion, weights};
use crate::{Error, Result};

/// A stretch of rows with constant weights.
#[derive(Clone, Debug)]
pub struct Phase {
    pub rows: u64,
    /// Non-negative and finite, one per cell, in any proportion.
    pub weights: Vec<f64>,
}

/// Where a run stands: what each cell has had, and what it should
/// have had in units of 2^-32 rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    pub counts: Vec<u64>,
    pub targets: Vec<u128>,
}

#[derive(Clone, Debug)]
struct Part {
    first_row: u64,
    /// Counts and targets per cell before the part.
    start: Start,
    /// Exact targets of the part alone, in units of 2^-32 rows; their sum is its planned rows.
    targets: Vec<u128>,
    tree: Tree,
}

/// Exact counts per cell for every row of a run; see [`super::tree`] for the order inside a phase.
#[derive(Clone, Debug)]
pub struct Quotas {
    parts: Vec<Part>,
    end: Start,
}

impl Quotas {
    /// Plans a run of `phases`; those without rows are left out.
    pub fn new(phases: &[Phase]) -> Result<Self> {
        let cells = phases.first().map_or(0, |phase| phase.weights.len());
        let start = Start { counts: vec![0; cells], targets: vec![0; cells] };
        let (parts, end) = plan(phases, start)?;
        Ok(Self { parts, end })
    }

    /// The same run up to `row`, and `phases` from there on. What was consumed stays, and the
    /// distances from the targets are carried on.
    pub fn changed_at(mut self, row: u64, phases: &[Phase]) -> Result<Self> {
        if row > self.end_row() {
            let end = self.end_row();
            return Err(Error::invalid(format!("a change at row {row} of a run of {end} rows")));
        }
        let (parts, end) = plan(phases, self.state_at(row))?;
        self.parts.retain(|part| part.first_row < row);
        self.parts.extend(parts);
        self.end = end;
        Ok(self)
    }

    pub fn cells(&self) -> usize {
        self.end.counts.len()
    }

    /// Rows of the run.
    pub fn end_row(&self) -> u64 {
        self.end.rows()
    }

    /// No cell is ever off its target by more than this many units of 2^-32 rows: proven from the
    /// shapes of the trees.
    pub fn bound(&self) -> u128 {
        self.parts.iter().map(|part| part.tree.bound()).max().unwrap_or(0)
    }

    /// Levels of the deepest tree.
    pub fn depth(&self) -> usize {
        self.parts.iter().map(|part| part.tree.depth()).max().unwrap_or(0)
    }

    /// The cell of row `n`, and how many rows of the run it had before. Panics outside the rows.
    pub fn locate(&self, n: u64) -> (usize, u64) {
        let part = self.part_of(n);
        let (cell, index) = part.tree.locate(n - part.first_row);
        (cell, part.start.counts[cell] + index)
    }

    /// The row that is the cell's row `index`; None if these quotas do not hold it.
    pub fn row_of(&self, cell: usize, index: u64) -> Option<u64> {
        let after = self.parts.partition_point(|part| part.start.counts[cell] <= index);
        let part = self.parts.get(after.checked_sub(1)?)?;
        let after = self.parts.get(after).map_or(&self.end, |part| &part.start);
        let before = part.start.counts[cell];
        let held = index < after.counts[cell]; // a part that a change cut off holds fewer than planned
        held.then(|| part.first_row + part.tree.row_of(cell, index - before))
    }

    /// Counts per cell of the rows before row `n`, into `out`.
    pub fn counts_at(&self, n: u64, out: &mut [u64]) {
        if n == self.end_row() {
            out.copy_from_slice(&self.end.counts);
            return;
        }
        let part = self.part_of(n);
        part.tree.counts_at(n - part.first_row, out);
        out.iter_mut().zip(&part.start.counts).for_each(|(count, before)| *count += before);
    }

    /// Rows of `cell` before row `n`.
    pub fn count_of(&self, cell: usize, n: u64) -> u64 {
        if n == self.end_row() {
            return self.end.counts[cell];
        }
        let part = self.part_of(n);
        part.start.counts[cell] + part.tree.count_of(cell, n - part.first_row)
    }

    /// Targets per cell at row `n` in units of 2^-32 rows; their sum is `n << 32`.
    pub fn targets_at(&self, n: u64) -> Vec<u128> {
        if n == self.end_row() {
            return self.end.targets.clone();
        }
        let part = self.part_of(n);
        let within = weights::targets(&part.targets, n - part.first_row);
        part.start.targets.iter().zip(within).map(|(before, within)| before + within).collect()
    }

    /// Where a run that stops these quotas at row `n` stands.
    pub fn state_at(&self, n: u64) -> Start {
        let mut counts = vec![0; self.cells()];
        self.counts_at(n, &mut counts);
        Start { counts, targets: self.targets_at(n) }
    }

    /// The cells of rows `n..n + cells.len()`.
    pub fn fill(&self, n: u64, cells: &mut [u16], scratch: &mut Scratch) {
        let (mut n, mut rest) = (n, cells);
        while !rest.is_empty() {
            let number = self.part_number(n);
            let part = &self.parts[number];
            let end = self.parts.get(number + 1).map_or(self.end_row(), |part| part.first_row);
            let left = end - n;
            let take = usize::try_from(left).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(take);
            part.tree.fill(n - part.first_row, now, scratch);
            (n, rest) = (n + take as u64, later);
        }
    }

    fn part_of(&self, n: u64) -> &Part {
        &self.parts[self.part_number(n)]
    }

    fn part_number(&self, n: u64) -> usize {
        assert!(n < self.end_row(), "row {n} is outside the run");
        self.parts.partition_point(|part| part.first_row <= n) - 1
    }
}

/// The parts of `phases` after `start`, and where they end.
fn plan(phases: &[Phase], start: Start) -> Result<(Vec<Part>, Start)> {
    let cells = start.counts.len();
    if let Some(phase) = phases.iter().find(|phase| phase.weights.len() != cells) {
        let found = phase.weights.len();
        return Err(Error::invalid(format!("a phase of {found} cells in a mixture of {cells}")));
    }
    let first_row = start.rows();
    let total = phases.iter().try_fold(first_row, |sum, phase| {
        sum.checked_add(phase.rows).filter(|&sum| sum <= MAX_ROWS)
    });
    if total.is_none() {
        return Err(Error::invalid("more than 2^62 rows"));
    }

    let mut own = Vec::new();
    for phase in phases.iter().filter(|phase| phase.rows > 0) {
        own.push(weights::targets(&weights::to_integers(&phase.weights)?, phase.rows));
    }
    let mut cumulative = Vec::with_capacity(own.len());
    let mut sum = start.targets.clone();
    for targets in &own {
        sum.iter_mut().zip(targets).for_each(|(sum, target)| *sum += target);
        cumulative.push(sum.clone());
    }
    let counts = apportion::boundary_counts(&start.counts, &cumulative);

    let mut parts = Vec::with_capacity(own.len());
    let (mut at, mut first_row) = (start, first_row);
    for ((targets, counts), cumulative) in own.into_iter().zip(counts).zip(cumulative) {
        let next = Start { counts, targets: cumulative };
        let quota: Vec<u64> =
            next.counts.iter().zip(&at.counts).map(|(after, before)| after - before).collect();
        let bias: Vec<Bias> = at.bias().zip(next.bias()).map(|(a, b)| [a, b]).collect();
        let tree = Tree::new(&quota, &bias);
        let rows: u64 = quota.iter().sum();
        parts.push(Part { first_row, start: at, targets, tree });
        first_row += rows;
        at = next;
    }
    Ok((parts, at))
}

impl Start {
    fn rows(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// How far each cell is ahead of its target.
    fn bias(&self) -> impl Iterator<Item = i64> {
        let ahead = |(count, target): (&u64, &u128)| {
            ((i128::from(*count) << TARGET_BITS) - *target as i128) as i64
        };
        self.counts.iter().zip(&self.targets).map(ahead)
    }
}
