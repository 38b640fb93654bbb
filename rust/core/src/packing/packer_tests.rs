use std::collections::BTreeMap;

use super::{Limits, Packer, Policy};
use crate::packing::{Piece, Rows};
use proptest::prelude::*;

const FREE: Limits = Limits { max_segments: u32::MAX, min_fill: 0.0 };

fn row_lengths(rows: &Rows) -> Vec<Vec<i64>> {
    (0..rows.len()).map(|row| rows.row(row).map(|piece| piece.length).collect()).collect()
}

fn packer_with(policy: Policy, limits: Limits, capacity: u32, lengths: &[i64]) -> Packer {
    let mut packer = Packer::new(policy, limits, capacity).unwrap();
    push(&mut packer, (0..).zip(lengths.iter().copied()));
    packer
}

fn push(packer: &mut Packer, documents: impl Iterator<Item = (i64, i64)>) {
    packer.push(documents, i64::MAX).unwrap();
}

#[test]
fn an_overlong_document_becomes_full_rows_and_a_remainder() {
    let mut packer = packer_with(Policy::BestFit, FREE, 4, &[5, 2, 3, 1]);
    let rows = packer.pack(3).unwrap();
    assert_eq!(row_lengths(&rows), [vec![4], vec![2, 1], vec![1, 3]]);
    assert_eq!(rows.document, [0, 1, 3, 0, 2]);
    assert_eq!(rows.start, [0, 0, 0, 4, 0]);
    assert_eq!(packer.counts().cut_documents, 1);
    assert_eq!(packer.waiting().len(), 0);
}

#[test]
fn a_document_of_seventeen_rows_keeps_the_order_of_its_parts() {
    let mut packer = packer_with(Policy::BestFit, FREE, 8, &[17 * 8]);
    let rows = packer.pack(17).unwrap();
    assert_eq!(rows.start, (0..17).map(|part| part * 8).collect::<Vec<i64>>());
    assert_eq!(packer.counts().cut_documents, 1);
}

#[test]
fn the_limit_of_segments_holds() {
    let limits = Limits { max_segments: 64, ..FREE };
    for policy in [Policy::BestFit, Policy::Concat] {
        let mut packer = packer_with(policy, limits, 4096, &vec![1; 4096]);
        let mut rows = Vec::new();
        for _ in 0..64 {
            rows.extend(row_lengths(&packer.pack(1).unwrap()));
        }
        assert_eq!(rows, vec![vec![1; 64]; 64], "{policy:?}");
    }
}

#[test]
fn a_waiting_document_is_whole_again_in_a_longer_row() {
    let mut packer = packer_with(Policy::BestFit, FREE, 4, &[3, 7]);
    assert_eq!(row_lengths(&packer.pack(1).unwrap()), [vec![3]]);
    packer.set_capacity(8).unwrap();
    assert_eq!(row_lengths(&packer.pack(1).unwrap()), [vec![7]]);
    assert_eq!(packer.counts().cut_documents, 0);
}

#[test]
fn truncation_is_counted_and_loses_nothing_that_waits() {
    let mut packer = packer_with(Policy::Truncate, FREE, 4, &[9, 9]);
    assert_eq!(row_lengths(&packer.pack(1).unwrap()), [vec![4]]);
    assert_eq!(packer.counts().truncated_tokens, 5);
    assert_eq!(packer.waiting().next().unwrap(), Piece { document: 1, start: 0, length: 9 });
}

#[test]
fn rows_below_the_minimum_fill_wait() {
    let limits = Limits { min_fill: 0.75, ..FREE };
    let mut packer = packer_with(Policy::BestFit, limits, 8, &[5, 6, 5, 8]);
    assert_eq!(row_lengths(&packer.pack(4).unwrap()), [vec![6], vec![8]]);
    assert_eq!(packer.waiting().len(), 2);
}

#[test]
fn impossible_limits_are_errors() {
    assert!(Packer::new(Policy::BestFit, Limits { max_segments: 0, ..FREE }, 4).is_err());
    assert!(Packer::new(Policy::BestFit, Limits { min_fill: 1.5, ..FREE }, 4).is_err());
    assert!(Packer::new(Policy::BestFit, FREE, 0).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Tokens of every document, in rows or waiting: each exactly once.
    #[test]
    fn every_token_is_in_one_row_or_waits(
        policy in prop_oneof![Just(Policy::BestFit), Just(Policy::Concat)],
        lengths in prop::collection::vec(0i64..40, 0..80),
        capacities in prop::collection::vec(prop_oneof![Just(7u32), Just(8), Just(9), Just(31)], 1..4),
        wanted in 0usize..20,
        max_segments in prop_oneof![Just(2u32), Just(u32::MAX)],
        min_fill in prop_oneof![Just(0.0), Just(0.5)],
    ) {
        let limits = Limits { max_segments, min_fill };
        let mut packer = packer_with(policy, limits, capacities[0], &lengths);
        let mut pieces: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
        for &capacity in &capacities {
            packer.set_capacity(capacity).unwrap();
            let enough = packer.ready_tokens() >= wanted as i64 * i64::from(capacity);
            let rows = packer.pack(wanted).unwrap();
            prop_assert!(rows.len() <= wanted);
            if enough && min_fill == 0.0 {
                prop_assert_eq!(rows.len(), wanted);
            }
            for row in 0..rows.len() {
                let row: Vec<Piece> = rows.row(row).collect();
                let fill: i64 = row.iter().map(|piece| piece.length).sum();
                prop_assert!(fill > 0 && fill <= i64::from(capacity));
                prop_assert!(row.len() <= max_segments as usize);
                for piece in row {
                    pieces.entry(piece.document).or_default().push((piece.start, piece.length));
                }
            }
        }
        for piece in packer.waiting() {
            pieces.entry(piece.document).or_default().push((piece.start, piece.length));
        }
        for (document, &length) in lengths.iter().enumerate() {
            let mut parts = pieces.remove(&(document as i64)).unwrap_or_default();
            parts.sort_unstable();
            let mut end = 0;
            for (start, part) in parts {
                prop_assert_eq!(start, end);
                end += part;
            }
            prop_assert_eq!(end, length);
        }
        prop_assert!(pieces.is_empty());
    }

    #[test]
    fn rows_are_few(
        lengths in prop::collection::vec(1i64..300, 500..900),
        capacity in prop_oneof![Just(1023u32), Just(1024), Just(1025)],
    ) {
        let total: i64 = lengths.iter().sum();
        let lower_bound = (total as usize).div_ceil(capacity as usize);
        let mut packer = packer_with(Policy::BestFit, FREE, capacity, &lengths);
        let rows = packer.pack(lengths.len()).unwrap();
        // The rows that wait are at most one of 64.
        prop_assert!(rows.len() <= lower_bound + 1);
    }

    /// Rows of a plan, taken out of the same order again, leave what the plan left.
    #[test]
    fn replayed_rows_leave_what_packing_left(
        policy in prop_oneof![Just(Policy::BestFit), Just(Policy::Concat), Just(Policy::Truncate)],
        lengths in prop::collection::vec(1i64..40, 1..60),
        epochs in 1usize..4,
        wanted in 0usize..20,
        kept in 0.0f64..=1.0,
    ) {
        let documents: Vec<i64> = (0..epochs).flat_map(|_| 0..lengths.len() as i64).collect();
        let lengths = lengths.repeat(epochs);
        let fresh = || {
            let mut packer = Packer::new(policy, FREE, 9).unwrap();
            push(&mut packer, documents.iter().copied().zip(lengths.iter().copied()));
            packer
        };
        let mut packer = fresh();
        let mut rows = packer.pack(wanted).unwrap();
        let mut replayed = fresh();
        prop_assert_eq!(replayed.replay(&rows).unwrap(), rows.len());
        prop_assert_eq!(replayed.counts(), packer.counts());
        let sorted = |packer: &Packer| {
            let mut waiting: Vec<_> = packer.waiting().collect();
            waiting.sort_unstable();
            waiting
        };
        let total = |packer: &Packer| packer.waiting().map(|piece| piece.length).sum::<i64>();
        if epochs == 1 {
            prop_assert_eq!(sorted(&replayed), sorted(&packer));
        }
        prop_assert_eq!(total(&replayed), total(&packer));

        // A part of the rows leaves the tokens of the others.
        let part = (kept * rows.len() as f64) as usize;
        let others: i64 = (part..rows.len()).flat_map(|row| rows.row(row)).map(|p| p.length).sum();
        rows.offsets.truncate(part + 1);
        let mut replayed = fresh();
        prop_assert_eq!(replayed.replay(&rows).unwrap(), part);
        if policy != Policy::Truncate {
            prop_assert_eq!(total(&replayed), total(&packer) + others);
        }
    }
}

#[test]
fn rows_of_documents_that_do_not_wait_are_not_replayed() {
    let rows = packer_with(Policy::BestFit, FREE, 8, &[8, 8]).pack(2).unwrap();
    let mut packer = packer_with(Policy::BestFit, FREE, 8, &[8]);
    assert_eq!(packer.replay(&rows).unwrap(), 1);
    push(&mut packer, [(1, 8)].into_iter());
    let second = Rows { offsets: vec![0, 1], document: vec![1], start: vec![0], length: vec![8] };
    assert_eq!(packer.replay(&second).unwrap(), 1);
    assert_eq!(packer.waiting().len(), 0);
}
