//! Exact quotas and the order of rows and documents.
