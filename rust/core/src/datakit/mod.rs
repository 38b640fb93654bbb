//! Reading, embedding, clustering and scoring of documents.

pub mod assign;
pub mod coarsen;
pub mod contamination;
pub mod files;
pub mod jsonl;
pub mod keys;
pub mod lexical;
mod measure;
pub mod quality;
mod random;
pub mod records;
pub mod terms;
pub mod warc;
mod words;
