//! The rows of a run in training order, and the documents of a cell.
//!
//! A batch holds consecutive rows of the quotas; inside it they stand in a keyed permutation, so
//! that a device's slice of the batch does not always see the same cells. A stage is a stretch of
//! rows of one length; rows of a cell are numbered within their stage.

use super::permute::{Permutation, derive_key};
use super::quotas::Quotas;
use super::tree::Scratch;
use crate::{Error, Result};

/// Purposes of derived keys.
const BATCH: u64 = 1;
const DOCUMENTS: u64 = 2;

/// Whole batches of one size.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub first_row: u64,
    pub batch_size: u64,
}

/// Where a row comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub stage: usize,
    pub cell: usize,
    /// Rows of the cell in the stage before this one.
    pub index: u64,
}

/// Places of consecutive rows, one slice per field and all of one length.
pub struct Places<'a> {
    pub stages: &'a mut [u16],
    pub cells: &'a mut [u16],
    pub indices: &'a mut [i64],
}

/// The order of a run.
#[derive(Debug)]
pub struct Order {
    quotas: Quotas,
    stages: Vec<u64>,
    /// Counts per cell at the start of each stage.
    stage_counts: Vec<Vec<u64>>,
    runs: Vec<Run>,
    seed: u64,
}

impl Order {
    /// `stages` are the first rows of the stages, `runs` those of the batch sizes; both begin at 0
    /// and increase. Each run must be a whole number of batches.
    pub fn new(quotas: Quotas, stages: Vec<u64>, runs: Vec<Run>, seed: u64) -> Result<Self> {
        let end = quotas.end_row();
        let run_rows: Vec<u64> = runs.iter().map(|run| run.first_row).collect();
        for (name, rows) in [("stages", &stages), ("runs", &run_rows)] {
            if rows.first() != Some(&0)
                || !rows.is_sorted_by(|a, b| a < b)
                || rows.last() > Some(&end)
            {
                return Err(Error::invalid(format!(
                    "the {name} begin at rows {rows:?}; expected increasing rows from 0 to {end}"
                )));
            }
        }
        for (number, run) in runs.iter().enumerate() {
            let next = run_rows.get(number + 1).copied().unwrap_or(end);
            let (rows, size) = (next - run.first_row, run.batch_size);
            if size == 0 || size > u64::from(u32::MAX) || !rows.is_multiple_of(size) {
                return Err(Error::invalid(format!(
                    "run {number} has {rows} rows in batches of {size}; expected whole batches"
                )));
            }
        }
        let stage_counts = stages
            .iter()
            .map(|&row| {
                let mut counts = vec![0; quotas.cells()];
                quotas.counts_at(row, &mut counts);
                counts
            })
            .collect();
        Ok(Self { quotas, stages, stage_counts, runs, seed })
    }

    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Counts per stage and cell.
    pub fn stage_rows(&self) -> Vec<Vec<u64>> {
        let mut end = vec![0; self.quotas.cells()];
        self.quotas.counts_at(self.quotas.end_row(), &mut end);
        let ends = self.stage_counts.iter().skip(1).chain(std::iter::once(&end));
        let rows = |(start, end): (&Vec<u64>, &Vec<u64>)| {
            end.iter().zip(start).map(|(end, start)| end - start).collect()
        };
        self.stage_counts.iter().zip(ends).map(rows).collect()
    }

    /// Where row `n` of the training order comes from.
    pub fn locate(&self, n: u64) -> Result<Place> {
        self.check_rows(n, 1)?;
        let (start, batch) = self.batch_of(n);
        let (cell, index) = self.quotas.locate(start + batch.apply(n - start));
        Ok(self.place(n, cell, index))
    }

    /// The row of the training order that is the cell's row `index`, counted over the whole run.
    pub fn row_of(&self, cell: usize, index: u64) -> Option<u64> {
        let row = self.quotas.row_of(cell, index)?;
        let (start, batch) = self.batch_of(row);
        Some(start + batch.invert(row - start))
    }

    /// Where rows `first..first + places.cells.len()` come from, batch by batch.
    pub fn fill(&self, first: u64, places: &mut Places<'_>) -> Result<()> {
        let count = places.cells.len();
        self.check_rows(first, count as u64)?;
        let mut scratch = Scratch::default();
        // Cell and index of the batch's rows in the order of the quotas.
        let mut rows: Vec<(u16, i64)> = Vec::new();
        let mut cells: Vec<u16> = Vec::new();
        let mut counts = vec![0; self.quotas.cells()];
        let mut counted = None; // the row at which `counts` stands
        let mut done = 0;
        while done < count {
            let n = first + done as u64;
            let (start, batch) = self.batch_of(n);
            let size = batch.len() as usize;
            let skip = (n - start) as usize;
            let taken = done..done + (count - done).min(size - skip);

            cells.resize(size, 0);
            self.quotas.fill(start, &mut cells, &mut scratch);
            if counted != Some(start) {
                self.quotas.counts_at(start, &mut counts);
            }
            let stage = self.stage_of(n);
            let before = &self.stage_counts[stage];
            rows.clear();
            rows.extend(cells.iter().map(|&cell| {
                let count = &mut counts[usize::from(cell)];
                *count += 1;
                (cell, (*count - 1 - before[usize::from(cell)]) as i64)
            }));
            counted = Some(start + batch.len());

            places.stages[taken.clone()].fill(stage as u16);
            let cells_out = places.cells[taken.clone()].iter_mut();
            let indices_out = places.indices[taken.clone()].iter_mut();
            for (i, (cell, index)) in cells_out.zip(indices_out).enumerate() {
                (*cell, *index) = rows[batch.apply((skip + i) as u64) as usize];
            }
            done = taken.end;
        }
        Ok(())
    }

    fn place(&self, n: u64, cell: usize, index: u64) -> Place {
        let stage = self.stage_of(n);
        Place { stage, cell, index: index - self.stage_counts[stage][cell] }
    }

    fn stage_of(&self, n: u64) -> usize {
        self.stages.partition_point(|&row| row <= n) - 1
    }

    /// The first row of the batch of row `n`, and the permutation of the batch.
    fn batch_of(&self, n: u64) -> (u64, Permutation) {
        let run = self.runs[self.runs.partition_point(|run| run.first_row <= n) - 1];
        let start = n - (n - run.first_row) % run.batch_size;
        (start, Permutation::new(run.batch_size, derive_key(self.seed, &[BATCH, start])))
    }

    fn check_rows(&self, first: u64, count: u64) -> Result<()> {
        let end = self.quotas.end_row();
        match first.checked_add(count) {
            Some(last) if last <= end => Ok(()),
            _ => Err(Error::invalid(format!("{count} rows from row {first} of a run of {end}"))),
        }
    }
}

/// The order of a cell's documents in one epoch. `cell` is a key that names the cell.
pub fn epoch_order(seed: u64, cell: u64, documents: u64, epoch: u64) -> Permutation {
    Permutation::new(documents, derive_key(seed, &[DOCUMENTS, cell, epoch]))
}
