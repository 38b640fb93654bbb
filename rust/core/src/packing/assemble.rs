//! Rows from a plan and a store.

use arrow_buffer::ScalarBuffer;

use super::{Piece, StoreCell};
use crate::{Error, Result};

/// One record batch of a plan file: rows of one stage and cell.
pub struct PlanChunk {
    /// Row `i` has the pieces `offsets[i]..offsets[i + 1]`.
    pub offsets: ScalarBuffer<i32>,
    pub document: ScalarBuffer<i64>,
    pub start: ScalarBuffer<i64>,
    pub length: ScalarBuffer<i32>,
}

/// All rows of one stage and cell, by their index.
pub struct PlanRows {
    chunks: Vec<PlanChunk>,
    first: Vec<i64>,
}

impl PlanRows {
    pub fn new(chunks: Vec<PlanChunk>) -> Self {
        let mut first = vec![0];
        let mut total = 0;
        for chunk in &chunks {
            total += chunk.offsets.len() as i64 - 1;
            first.push(total);
        }
        Self { chunks, first }
    }

    pub fn rows(&self) -> i64 {
        self.first[self.chunks.len()]
    }

    /// The pieces of row `index`.
    pub fn row(&self, index: i64) -> Result<impl ExactSizeIterator<Item = Piece> + '_> {
        if index < 0 || index >= self.rows() {
            return Err(Error::invalid(format!("row {index} of a plan with {}", self.rows())));
        }
        let at = self.first.partition_point(|&first| first <= index) - 1;
        let chunk = &self.chunks[at];
        let row = (index - self.first[at]) as usize;
        let (begin, end) = (chunk.offsets[row], chunk.offsets[row + 1]);
        let pieces = chunk.document.len().min(chunk.start.len()).min(chunk.length.len());
        if begin < 0 || begin > end || end as usize > pieces {
            return Err(Error::invalid(format!(
                "row {index} of the plan has the pieces {begin} to {end} of {pieces}; plan again"
            )));
        }
        Ok((begin as usize..end as usize).map(|at| Piece {
            document: chunk.document[at],
            start: chunk.start[at],
            length: i64::from(chunk.length[at]),
        }))
    }
}

/// Segments of assembled rows: row `i` has the lengths `lengths[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Segments {
    pub offsets: Vec<i32>,
    pub lengths: Vec<i32>,
}

/// Fills `tokens` with rows of `row_length` tokens, zeros after the last document of each; row `i`
/// is row `index[i]` of cell `cell[i]`. `source(cell)` gives the plan and the tokens of a cell.
pub fn assemble<'a>(
    source: impl Fn(u16) -> Option<(&'a PlanRows, &'a StoreCell)>,
    cell: &[u16],
    index: &[i64],
    row_length: usize,
    tokens: &mut [i32],
) -> Result<Segments> {
    if cell.len() != index.len() || tokens.len() != cell.len() * row_length {
        return Err(Error::invalid(format!(
            "{} cells, {} rows and {} tokens for rows of {row_length}",
            cell.len(),
            index.len(),
            tokens.len()
        )));
    }
    let mut segments = Segments { offsets: vec![0], lengths: Vec::new() };
    for ((&cell, &index), mut rest) in
        cell.iter().zip(index).zip(tokens.chunks_exact_mut(row_length.max(1)))
    {
        let (plan, store) = source(cell)
            .ok_or_else(|| Error::invalid(format!("no plan for cell number {cell}")))?;
        for piece in plan.row(index)? {
            if piece.length <= 0 || piece.length > rest.len() as i64 {
                return Err(Error::invalid(format!(
                    "row {index} of cell number {cell} is longer than {row_length} tokens"
                )));
            }
            let (out, after) = rest.split_at_mut(piece.length as usize);
            store.read(piece, out)?;
            segments.lengths.push(piece.length as i32);
            rest = after;
        }
        rest.fill(0);
        segments.offsets.push(segments.lengths.len() as i32);
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_whose_pieces_are_not_there_is_an_error() {
        for offsets in [vec![0, 3], vec![-1, 1], vec![2, 1]] {
            let plan = PlanRows::new(vec![PlanChunk {
                offsets: offsets.into(),
                document: vec![0, 1].into(),
                start: vec![0, 0].into(),
                length: vec![4, 4].into(),
            }]);
            let error = plan.row(0).err().expect("an error").to_string();
            assert!(error.contains("row 0 of the plan has the pieces"), "{error}");
        }
    }
}
