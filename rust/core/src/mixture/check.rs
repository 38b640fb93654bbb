//! How far the counts of a run are ever from their targets.

use rayon::prelude::*;

use super::TARGET_BITS;
use super::quotas::Quotas;
use crate::threads::with_threads;
use crate::{Error, Result};

/// The largest distance found, in units of 2^-32 rows, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Distance {
    pub units: u128,
    pub cell: usize,
    pub row: u64,
}

/// Rows of one task.
const TASK_ROWS: u64 = 4096;

/// Evaluates every cell after every `step`-th row of `first..=last` on `threads` threads (0: all)
/// and returns the worst. Fails if the counts do not add up to the rows.
pub fn worst(
    quotas: &Quotas,
    first: u64,
    last: u64,
    step: u64,
    threads: usize,
) -> Result<Distance> {
    if first > last || last > quotas.end_row() || step == 0 {
        let end = quotas.end_row();
        return Err(Error::invalid(format!(
            "rows {first} to {last} by {step}: expected a range within 0 to {end} and a step >= 1"
        )));
    }
    let steps = (last - first) / step + 1;
    let tasks = usize::try_from(steps.div_ceil(TASK_ROWS))
        .map_err(|_| Error::invalid(format!("{steps} rows are too many to check")))?;
    with_threads(threads, || {
        (0..tasks)
            .into_par_iter()
            .map(|task| {
                let from = task as u64 * TASK_ROWS;
                let to = (from + TASK_ROWS).min(steps);
                worst_of_rows(quotas, (from..to).map(|i| first + i * step))
            })
            .try_reduce(Distance::default, |a, b| Ok(a.max(b)))
    })?
}

fn worst_of_rows(quotas: &Quotas, rows: impl Iterator<Item = u64>) -> Result<Distance> {
    let mut counts = vec![0; quotas.cells()];
    let mut worst = Distance::default();
    for row in rows {
        quotas.counts_at(row, &mut counts);
        if counts.iter().sum::<u64>() != row {
            return Err(Error::invalid(format!("the counts after row {row} add up to another")));
        }
        for (cell, (count, target)) in counts.iter().zip(quotas.targets_at(row)).enumerate() {
            let units = (u128::from(*count) << TARGET_BITS).abs_diff(target);
            worst = worst.max(Distance { units, cell, row });
        }
    }
    Ok(worst)
}
