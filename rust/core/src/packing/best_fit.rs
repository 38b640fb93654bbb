//! Best fit decreasing: the longest piece first, each into the fullest row that still has room.
//!
//! D. S. Johnson, "Near-optimal bin packing algorithms", 1973: at most 11/9 of the optimum, and in
//! practice within a few rows of it once short documents are left to fill the gaps.

use super::capacity::CapacityIndex;

/// Radix of the sort by length.
const DIGIT_BITS: u32 = 11;

/// Which row each piece goes to.
pub(super) struct Assignment {
    /// Row of each piece.
    pub row: Vec<u32>,
    /// Per row: the piece that opened it, which is its longest.
    pub opener: Vec<u32>,
    /// Per row: tokens in it.
    pub fill: Vec<u32>,
    /// Per row: pieces in it.
    pub pieces: Vec<u32>,
}

/// Packs pieces of `lengths` (each in 1..=capacity) into rows of `capacity` tokens and at most
/// `max_segments` pieces. O(n log_64 capacity).
pub(super) fn best_fit(lengths: &[u32], capacity: u32, max_segments: u32) -> Assignment {
    let mut open = CapacityIndex::new(capacity);
    let mut result =
        Assignment { row: vec![0; lengths.len()], opener: vec![], fill: vec![], pieces: vec![] };
    for piece in by_length_descending(lengths, capacity) {
        let length = lengths[piece as usize];
        let (row, room) = match open.take_tightest(length) {
            Some(found) => found,
            None => {
                result.opener.push(piece);
                result.fill.push(0);
                result.pieces.push(0);
                (result.opener.len() as u32 - 1, capacity)
            }
        };
        let index = row as usize;
        result.row[piece as usize] = row;
        result.fill[index] += length;
        result.pieces[index] += 1;
        if room > length && result.pieces[index] < max_segments {
            open.insert(row, room - length);
        }
    }
    result
}

/// Indices of `lengths`, longest first, equal ones in their order.
fn by_length_descending(lengths: &[u32], capacity: u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..lengths.len() as u32).collect();
    let mut sorted = vec![0; lengths.len()];
    let bits = u32::BITS - capacity.leading_zeros();
    for shift in (0..bits).step_by(DIGIT_BITS as usize) {
        let digit = |piece: u32| {
            let key = capacity - lengths[piece as usize];
            (key >> shift) as usize & ((1 << DIGIT_BITS) - 1)
        };
        let mut starts = [0u32; 1 << DIGIT_BITS];
        for &piece in &order {
            starts[digit(piece)] += 1;
        }
        let mut total = 0;
        for start in &mut starts {
            total += std::mem::replace(start, total);
        }
        for &piece in &order {
            let start = &mut starts[digit(piece)];
            sorted[*start as usize] = piece;
            *start += 1;
        }
        std::mem::swap(&mut order, &mut sorted);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::{best_fit, by_length_descending};
    use proptest::prelude::*;

    /// The definition, in quadratic time; of equally full rows the one touched last.
    fn slow_best_fit(lengths: &[u32], capacity: u32, max_segments: u32) -> Vec<u32> {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.sort_by_key(|&piece| std::cmp::Reverse(lengths[piece]));
        let mut rows: Vec<(u32, u32, usize)> = vec![];
        for (time, piece) in order.into_iter().enumerate() {
            let best = (0..rows.len())
                .filter(|&row| rows[row].0 >= lengths[piece] && rows[row].1 < max_segments)
                .min_by_key(|&row| (rows[row].0, std::cmp::Reverse(rows[row].2)))
                .unwrap_or_else(|| {
                    rows.push((capacity, 0, 0));
                    rows.len() - 1
                });
            rows[best] = (rows[best].0 - lengths[piece], rows[best].1 + 1, time);
        }
        rows.into_iter().map(|(room, _, _)| capacity - room).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn fills_rows_as_the_definition_does(
            capacity in prop_oneof![Just(4u32), Just(63), Just(64), Just(65), Just(5000)],
            fractions in prop::collection::vec(0.0f64..1.0, 0..120),
            max_segments in prop_oneof![Just(1u32), Just(3), Just(u32::MAX)],
        ) {
            let lengths: Vec<u32> =
                fractions.iter().map(|f| 1 + (f * f * f64::from(capacity)) as u32).collect();
            let lengths: Vec<u32> = lengths.iter().map(|&l| l.min(capacity)).collect();
            let result = best_fit(&lengths, capacity, max_segments);
            let mut fills = result.fill.clone();
            let mut expected = slow_best_fit(&lengths, capacity, max_segments);
            fills.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(fills, expected);
            let mut seen = vec![0; result.fill.len()];
            for (piece, &row) in result.row.iter().enumerate() {
                seen[row as usize] += lengths[piece];
            }
            prop_assert_eq!(seen, result.fill);
        }
    }

    #[test]
    fn sorts_by_length_and_keeps_the_order_of_equals() {
        let lengths = [3, 70_000, 1, 3, 262_144, 70_000];
        assert_eq!(by_length_descending(&lengths, 262_144), [4, 1, 5, 0, 3, 2]);
    }
}
