//! Rows into batches.

mod derive;
mod shard;

pub use derive::{RowsOut, derive_row, derive_rows};
pub use shard::{Block, Checksums, Geometry, Shard, checksum_blocks};
