//! How many rows each cell has had at each phase boundary: whole numbers near the targets.
//!
//! A count may be at most `d` rows from its target at every boundary. For a given `d` each row of a
//! cell has a first boundary that may include it and a last one that must. Filling the phases with
//! the rows nearest to their targets is best if it works; filling them by earliest deadline works if
//! anything does (R. Tijdeman, "The chairman assignment problem", Discrete Math. 32, 1980: some `d`
//! below 1 always does when the run starts from nothing). The smallest `d`, to 2^-10 rows, is found
//! by bisection. Looking ahead matters: were the boundaries rounded one by one, the rounding of
//! cells that end with a phase would fall on the few that go on.

use super::{ONE, RESOLUTION, TARGET_BITS};

/// Which rows that a phase may but need not hold come first.
#[derive(Clone, Copy)]
enum First {
    Nearest,
    Deadline,
}

/// Counts per boundary and cell, `counts[k]` at the end of phase `k`.
///
/// `start` are the counts before the first phase; `targets[k]` the cumulative targets at the end of
/// phase `k` in units of 2^-32 rows, non-decreasing in `k`, whose sum is a whole number of rows.
pub fn boundary_counts(start: &[u64], targets: &[Vec<u128>]) -> Vec<Vec<u64>> {
    let within = |distance: i128| {
        fill(start, targets, distance, First::Nearest)
            .or_else(|| fill(start, targets, distance, First::Deadline))
    };
    let mut high = ONE;
    let mut best = loop {
        match within(high) {
            Some(counts) => break counts,
            None => high *= 2, // a start far from the targets needs more room
        }
    };
    let mut low = if high > ONE { high / 2 } else { 0 };
    while high - low > RESOLUTION {
        let middle = (low + high) / 2;
        match within(middle) {
            Some(counts) => (best, high) = (counts, middle),
            None => low = middle,
        }
    }
    best
}

fn fill(
    start: &[u64],
    targets: &[Vec<u128>],
    distance: i128,
    first: First,
) -> Option<Vec<Vec<u64>>> {
    let least = |k: usize, cell: usize| ceil_rows(targets[k][cell] as i128 - distance);
    let mut counts: Vec<u64> = start.to_vec();
    let mut result = Vec::with_capacity(targets.len());
    for (k, target) in targets.iter().enumerate() {
        let rows = (target.iter().sum::<u128>() >> TARGET_BITS) as i128;
        let mut spare = rows;
        let mut optional = Vec::new(); // (deadline, lag behind the target, cell) of one row each
        for (cell, count) in counts.iter_mut().enumerate() {
            let most = (target[cell] as i128 + distance) >> TARGET_BITS;
            *count = (*count).max(least(k, cell));
            if *count as i128 > most {
                return None;
            }
            spare -= *count as i128;
            let most = most.min(ceil_rows(target[cell] as i128) as i128);
            for next in *count as i128 + 1..=most {
                let deadline = match first {
                    First::Nearest => None,
                    First::Deadline => {
                        (k + 1..targets.len()).find(|&k| least(k, cell) as i128 >= next)
                    }
                };
                let ahead = (next << TARGET_BITS) - target[cell] as i128;
                optional.push((deadline.unwrap_or(targets.len()), ahead, cell));
            }
        }
        let spare = usize::try_from(spare).ok().filter(|&spare| spare <= optional.len())?;
        optional.sort_unstable();
        for &(_, _, cell) in &optional[..spare] {
            counts[cell] += 1;
        }
        result.push(counts.clone());
    }
    Some(result)
}

fn ceil_rows(units: i128) -> u64 {
    ((units + ONE - 1) >> TARGET_BITS).max(0) as u64
}
