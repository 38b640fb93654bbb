//! Documents into rows.
//!
//! A [`Packer`] holds the documents of one cell that wait for a row, in the mixture's order. Each
//! call packs a window of them, from lengths alone, and keeps what did not fit well: nothing is
//! skipped and nothing is repeated, also when the row length changes between two calls.

mod best_fit;
mod capacity;
mod packer;
mod rows;

pub use packer::{Counts, Limits, Packer, Policy};
pub use rows::{Piece, Rows};
