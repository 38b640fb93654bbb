//! Fuzzy deduplication: MinHash proposes, the text decides.
//!
//! One pass over the texts ([`text`]) gives each document a 128-bit hash of its normalized text and
//! a MinHash sketch ([`sketch`]), of which only the band keys are kept ([`banding`], [`spill`]).
//! Documents that share a band key are candidates ([`candidates`]); whether one is removed is
//! decided on the exact sets of their shingles ([`verify`], [`store`]) against kept documents alone
//! ([`survivors`]); documents that are never removed are only put together ([`families`]).
//! [`session`] holds the state of a run.
//!
//! Nothing depends on the number of threads or on the order in which batches arrive.

pub mod banding;
pub mod block;
pub mod candidates;
pub mod exact;
pub mod families;
pub mod ids;
pub mod kperm;
pub mod session;
pub mod sha1;
pub mod sketch;
pub mod spill;
pub mod store;
pub mod survivors;
pub mod tally;
pub mod text;
pub mod token;
pub mod verify;
