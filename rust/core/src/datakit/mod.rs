//! Embedding and quality of documents.
