//! Documents into rows.
