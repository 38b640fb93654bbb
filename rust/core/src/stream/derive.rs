//! What a model needs beside tokens, from segment lengths.

use crate::{Error, Result};

/// Output of consecutive rows, each array in row-major order.
pub struct RowsOut<'a> {
    /// [rows, row_length]
    pub tokens: &'a mut [i32],
    /// [rows, row_length]: 1, 2, ... per document; 0 on padding.
    pub segment_ids: &'a mut [i32],
    /// [rows, row_length]: 0, 1, ... from the start of each document; 0 on padding.
    pub positions: &'a mut [i32],
    /// [rows, row_length]: 1 where the next token belongs to the same document, else 0.
    pub loss_mask: &'a mut [u8],
    /// [rows]
    pub cells: &'a mut [u16],
}

impl RowsOut<'_> {
    /// Checks that every array holds `rows` rows of `row_length`.
    pub fn check(&self, rows: usize, row_length: usize) -> Result<()> {
        let expected = rows * row_length;
        let found =
            [self.tokens.len(), self.segment_ids.len(), self.positions.len(), self.loss_mask.len()];
        if found != [expected; 4] || self.cells.len() != rows {
            return Err(Error::invalid(format!(
                "arrays of {found:?} and {} for {rows} rows of {row_length}",
                self.cells.len()
            )));
        }
        Ok(())
    }
}

/// Fills the derived arrays of one row from the lengths of its documents. False if the lengths
/// cannot be those of a row: one is not positive, or they are together longer than it.
pub fn derive_row(
    lengths: impl Iterator<Item = i32>,
    segment_ids: &mut [i32],
    positions: &mut [i32],
    loss_mask: &mut [u8],
) -> bool {
    let row_length = segment_ids.len();
    let mut begin = 0;
    for (document, length) in lengths.enumerate() {
        let Ok(length) = usize::try_from(length) else { return false };
        if length == 0 || length > row_length - begin {
            return false;
        }
        let end = begin + length;
        segment_ids[begin..end].fill(document as i32 + 1);
        for (offset, position) in positions[begin..end].iter_mut().enumerate() {
            *position = offset as i32;
        }
        loss_mask[begin..end].fill(1);
        loss_mask[end - 1] = 0;
        begin = end;
    }
    segment_ids[begin..].fill(0);
    positions[begin..].fill(0);
    loss_mask[begin..].fill(0);
    true
}

/// [`derive_row`] for rows whose segments are `lengths[offsets[i]..offsets[i + 1]]`.
pub fn derive_rows(
    offsets: &[i32],
    lengths: &[i32],
    row_length: usize,
    segment_ids: &mut [i32],
    positions: &mut [i32],
    loss_mask: &mut [u8],
) -> Result<()> {
    let rows = offsets.len().saturating_sub(1);
    if [segment_ids.len(), positions.len(), loss_mask.len()] != [rows * row_length; 3] {
        return Err(Error::invalid(format!("arrays that are not {rows} rows of {row_length}")));
    }
    for (row, bounds) in offsets.windows(2).enumerate() {
        let wide = row * row_length..(row + 1) * row_length;
        let segments = lengths.get(bounds[0] as usize..bounds[1] as usize);
        let good = segments.is_some_and(|segments| {
            derive_row(
                segments.iter().copied(),
                &mut segment_ids[wide.clone()],
                &mut positions[wide.clone()],
                &mut loss_mask[wide],
            )
        });
        if !good {
            return Err(Error::invalid(format!("row {row}: segments do not fit {row_length}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::derive_row;
    use proptest::prelude::*;

    fn derived(lengths: &[i32], row_length: usize) -> (bool, Vec<i32>, Vec<i32>, Vec<u8>) {
        let (mut ids, mut positions) = (vec![-1; row_length], vec![-1; row_length]);
        let mut mask = vec![9; row_length];
        let good = derive_row(lengths.iter().copied(), &mut ids, &mut positions, &mut mask);
        (good, ids, positions, mask)
    }

    #[test]
    fn three_tokens_in_a_row_of_eight_have_two_positions_with_loss() {
        let (good, ids, positions, mask) = derived(&[3], 8);
        assert!(good);
        assert_eq!(ids, [1, 1, 1, 0, 0, 0, 0, 0]);
        assert_eq!(positions, [0, 1, 2, 0, 0, 0, 0, 0]);
        assert_eq!(mask, [1, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn lengths_that_are_no_row_are_refused() {
        for lengths in [&[5][..], &[2, 3], &[0], &[-1], &[i32::MIN]] {
            assert!(!derived(lengths, 4).0, "{lengths:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_mask_is_where_the_next_token_has_the_same_segment(
            lengths in prop::collection::vec(1i32..9, 0..9), padding in 0usize..5,
        ) {
            let row_length = lengths.iter().sum::<i32>() as usize + padding;
            let (good, ids, positions, mask) = derived(&lengths, row_length);
            prop_assert!(good);
            for at in 0..row_length {
                let next = ids.get(at + 1).copied().unwrap_or(0);
                prop_assert_eq!(mask[at] == 1, ids[at] != 0 && ids[at] == next);
                let restarts = at == 0 || ids[at] != ids[at - 1] || ids[at] == 0;
                prop_assert_eq!(positions[at], if restarts { 0 } else { positions[at - 1] + 1 });
            }
        }
    }
}
