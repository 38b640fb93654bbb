//! What a plan says about rows.

use crate::{Error, Result};

/// A run of tokens of one document: `length` of them from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Piece {
    /// Index of the document in its cell's store.
    pub document: i64,
    pub start: i64,
    pub length: i64,
}

/// Packed rows as columns: row `i` consists of the pieces `offsets[i]..offsets[i + 1]`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Rows {
    pub offsets: Vec<i32>,
    pub document: Vec<i64>,
    pub start: Vec<i64>,
    pub length: Vec<i32>,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces of row `index`.
    pub fn row(&self, index: usize) -> impl Iterator<Item = Piece> + '_ {
        (self.offsets[index] as usize..self.offsets[index + 1] as usize).map(|at| Piece {
            document: self.document[at],
            start: self.start[at],
            length: i64::from(self.length[at]),
        })
    }

    /// Room for rows whose numbers of pieces are `counts`; the pieces are still zero.
    pub(super) fn with_counts(counts: impl Iterator<Item = u32>) -> Result<Self> {
        let mut offsets = vec![0];
        let mut total = 0i32;
        for count in counts {
            total = i32::try_from(count)
                .ok()
                .and_then(|count| total.checked_add(count))
                .ok_or_else(|| Error::invalid("more than 2^31 segments in one window"))?;
            offsets.push(total);
        }
        let pieces = total as usize;
        Ok(Self {
            offsets,
            document: vec![0; pieces],
            start: vec![0; pieces],
            length: vec![0; pieces],
        })
    }

    pub(super) fn set(&mut self, at: usize, piece: Piece) {
        self.document[at] = piece.document;
        self.start[at] = piece.start;
        self.length[at] = piece.length as i32;
    }
}
