//! The algorithms of Marin, without Python: what `marin._native` binds.
//!
//! Every fast path has a slow, obvious twin in its tests. Nothing here keeps global state, so the
//! crate is safe in a process that forks: threads live only as long as the call that needs them.

pub mod bytes;
pub mod checksum;
pub mod datakit;
pub mod dedup;
pub mod error;
pub mod mixture;
pub mod packing;
pub mod stream;
pub mod threads;
pub mod writeback;

pub use error::{Error, Result};
