//! Reading, embedding, clustering and scoring of documents.

pub mod assign;
pub mod coarsen;
pub mod files;
pub mod keys;
pub mod lexical;
mod measure;
pub mod quality;
mod random;
pub mod terms;
mod words;
