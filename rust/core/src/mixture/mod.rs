//! Exact quotas and the order of rows and documents.
//!
//! Weights become integers once ([`weights`]); each phase of the run gets an integer number of rows
//! per cell ([`apportion`]); a binary tree per phase spreads them evenly ([`tree`], its shape from
//! [`shape`]). [`quotas`] chains the phases into a run, where row `n` is found in time independent
//! of `n`. Everything past the conversion of the weights is integer arithmetic, so the result is
//! the same on every machine.

pub mod apportion;
pub mod check;
pub mod documents;
pub mod offsets;
pub mod order;
pub mod permute;
pub mod quotas;
pub mod shape;
pub mod tree;
pub mod weights;
pub mod wide;

#[cfg(test)]
mod tests;

/// The longest run, in rows: products of two row counts stay below 2^124.
pub const MAX_ROWS: u64 = 1 << 62;

/// Fractional bits of a target: targets are integers in units of 2^-32 rows.
pub const TARGET_BITS: u32 = 32;

/// One row, in units of a target.
const ONE: i128 = 1 << TARGET_BITS;

/// Bisections for a smallest distance stop here: 2^-10 rows.
const RESOLUTION: i128 = ONE >> 10;
