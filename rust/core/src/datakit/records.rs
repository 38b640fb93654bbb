//! What parsers of record streams give: rows, and reasons for what is no row.

/// One document as found in a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// 0-based number of the line or record in the block.
    pub number: u64,
    pub id: Option<String>,
    pub text: String,
    pub source: Option<String>,
    /// Everything else that the record says, as one JSON object.
    pub metadata: String,
    /// Malformed sequences and lone surrogates that became U+FFFD.
    pub repaired: u32,
}

/// A record that is not a document, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Rejected {
    pub number: u64,
    pub reason: String,
    /// The record's first characters.
    pub excerpt: String,
}

/// The records of one block of bytes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// Bytes used; what follows is the start of a record whose end is in the next block.
    pub consumed: usize,
    pub records: u64,
    pub rows: Vec<Row>,
    pub rejected: Vec<Rejected>,
}

const EXCERPT_BYTES: usize = 200;

impl Rejected {
    pub fn new(number: u64, reason: impl Into<String>, record: &[u8]) -> Self {
        let head = &record[..record.len().min(EXCERPT_BYTES)];
        let excerpt = String::from_utf8_lossy(head).replace(char::is_control, " ");
        Self { number, reason: reason.into(), excerpt }
    }
}
