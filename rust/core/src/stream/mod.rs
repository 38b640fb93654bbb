//! Rows into batches.
