//! Fuzzy deduplication: MinHash proposes, the text decides.
