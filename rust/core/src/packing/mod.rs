//! Documents into rows.
//!
//! A [`Packer`] holds the documents of one cell that wait for a row, in the mixture's order. Each
//! call packs a window of them, from lengths alone, and keeps what did not fit well: nothing is
//! skipped and nothing is repeated, also when the row length changes between two calls.
//! [`assemble`] then reads the tokens of any rows of the plan.

mod assemble;
mod best_fit;
mod capacity;
mod packer;
mod replay;
mod rows;
mod store;

pub use assemble::{PlanChunk, PlanRows, Segments, assemble};
pub use packer::{Counts, Limits, Packer, Policy};
pub use rows::{Piece, Rows};
pub use store::{StoreCell, TokenChunk};
