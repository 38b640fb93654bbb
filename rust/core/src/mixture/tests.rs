use proptest::prelude::*;

use super::check::worst;
use super::order::{Order, Place, Places, Run, epoch_order};
use super::permute::Permutation;
use super::quotas::{Phase, Quotas};
use super::{MAX_ROWS, TARGET_BITS};

fn weight() -> impl Strategy<Value = f64> {
    prop_oneof![
        4 => 0.0..1.0f64,
        2 => Just(0.5),
        2 => (0.0..1.0f64).prop_map(|w| w.powi(20)),
        1 => Just(0.0),
        1 => Just(1e-300),
        1 => Just(f64::from_bits(1)),
        1 => Just(3e-6),
        1 => Just(0.999_997),
    ]
}

fn rows() -> impl Strategy<Value = u64> {
    prop_oneof![1..50u64, 1..10_000u64, 1..1u64 << 40, 1..1u64 << 59]
}

fn phases() -> impl Strategy<Value = Vec<Phase>> {
    (1..40usize, 1..5usize).prop_flat_map(|(cells, phases)| {
        let phase =
            (rows(), prop::collection::vec(weight(), cells)).prop_map(|(rows, mut weights)| {
                if weights.iter().all(|w| *w == 0.0) {
                    weights[0] = 1.0;
                }
                Phase { rows, weights }
            });
        prop::collection::vec(phase, phases)
    })
}

const BOUND: u128 = 3 << (TARGET_BITS - 1); // 1.5 rows

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn counts_stay_within_one_and_a_half_rows_and_the_proven_bound(phases in phases(), at: u64) {
        let quotas = Quotas::new(&phases).unwrap();
        let end = quotas.end_row();
        let first = at % end;
        for (first, last) in [(0, end.min(300)), (end - end.min(300), end), (first, end.min(first + 300))] {
            let found = worst(&quotas, first, last, 1, 1).unwrap();
            prop_assert!(found.units <= quotas.bound().min(BOUND), "{found:?}");
        }
    }

    #[test]
    fn row_and_cell_with_index_lead_to_each_other(phases in phases(), at: u64) {
        let quotas = Quotas::new(&phases).unwrap();
        let end = quotas.end_row();
        let mut cells = vec![0; 100.min(end) as usize];
        let first = at % (end - cells.len() as u64 + 1);
        quotas.fill(first, &mut cells, &mut Default::default());
        for (i, &filled) in cells.iter().enumerate() {
            let n = first + i as u64;
            let (cell, index) = quotas.locate(n);
            prop_assert_eq!(cell, usize::from(filled));
            prop_assert_eq!(quotas.row_of(cell, index), Some(n));
            prop_assert_eq!(quotas.count_of(cell, n), index);
            prop_assert_eq!(quotas.count_of(cell, n + 1), index + 1);
        }
    }

    /// Budgets of up to 2^62 rows in all, in batches of any size.
    #[test]
    fn a_row_and_its_cell_document_and_epoch_lead_to_each_other(
        weights in prop::collection::vec(prop::collection::vec(weight(), 12), 1..5),
        cells in 1..=12usize,
        batches in prop::collection::vec(prop_oneof![1..40u64, 1..1u64 << 40], 4),
        batch_size in 1..=1u64 << 20,
        documents in prop::collection::vec(prop_oneof![1..9u64, 1..1u64 << 40], 12),
        at in prop::collection::vec(any::<u64>(), 16),
        seed: u64,
    ) {
        let parts = weights.len() as u64;
        let phases: Vec<Phase> = weights.into_iter().zip(batches).map(|(mut weights, batches)| {
            weights.truncate(cells);
            if weights.iter().all(|weight| *weight == 0.0) {
                weights[cells - 1] = f64::from_bits(1);
            }
            Phase { rows: batches.min(MAX_ROWS / parts / batch_size) * batch_size, weights }
        }).collect();
        let quotas = Quotas::new(&phases).unwrap();
        let end = quotas.end_row();
        let order = Order::new(quotas, vec![0], vec![Run { first_row: 0, batch_size }], seed).unwrap();
        let edges = [0, 1, batch_size, end / 2].into_iter().chain((1..4).map(|back| end - back.min(end)));
        for n in edges.chain(at).map(|n| n % end) {
            let Place { cell, index, .. } = order.locate(n).unwrap();
            let held = documents[cell];
            let (epoch, within) = (index / held, index % held);
            let permutation = epoch_order(seed, cell as u64, held, epoch);
            let document = permutation.apply(within);
            prop_assert!(document < held);
            let found = epoch * held + permutation.invert(document);
            prop_assert_eq!(order.row_of(cell, found), Some(n));
        }
        // And from the other end: any cell's last row is in the run and comes back.
        let counts = order.stage_rows().remove(0);
        prop_assert_eq!(counts.iter().sum::<u64>(), end);
        for (cell, &count) in counts.iter().enumerate() {
            prop_assert_eq!(order.row_of(cell, count), None);
            if let Some(index) = count.checked_sub(1) {
                let n = order.row_of(cell, index).unwrap();
                prop_assert!(n < end);
                prop_assert_eq!(order.locate(n).unwrap(), Place { stage: 0, cell, index });
            }
        }
    }

    #[test]
    fn a_permutation_is_one_and_has_its_inverse(len in 1..2000u64, key: u64) {
        let permutation = Permutation::new(len, key);
        let mut seen = vec![false; len as usize];
        for i in 0..len {
            let to = permutation.apply(i);
            prop_assert!(!std::mem::replace(&mut seen[to as usize], true));
            prop_assert_eq!(permutation.invert(to), i);
        }
    }
}

#[test]
fn the_largest_run_has_no_overflow() {
    let phase = Phase { rows: MAX_ROWS, weights: vec![0.999_997, 3e-6, 1e-300] };
    let quotas = Quotas::new(&[phase]).unwrap();
    let (cell, index) = quotas.locate(MAX_ROWS - 1);
    assert_eq!(quotas.row_of(cell, index), Some(MAX_ROWS - 1));
    assert!(worst(&quotas, MAX_ROWS - 1000, MAX_ROWS, 1, 1).unwrap().units <= BOUND);
}

#[test]
fn rows_filled_are_the_rows_located() {
    let phase = |rows, weights: &[f64]| Phase { rows, weights: weights.to_vec() };
    let quotas = Quotas::new(&[phase(96, &[0.2, 0.7, 0.1]), phase(40, &[0.5, 0.0, 0.5])]).unwrap();
    let runs = vec![Run { first_row: 0, batch_size: 16 }, Run { first_row: 96, batch_size: 8 }];
    let order = Order::new(quotas, vec![0, 48], runs, 7).unwrap();
    let (mut stages, mut cells, mut indices) = ([0; 100], [0; 100], [0; 100]);
    let mut places = Places { stages: &mut stages, cells: &mut cells, indices: &mut indices };
    order.fill(5, &mut places).unwrap();
    for i in 0..100 {
        let place = order.locate(5 + i as u64).unwrap();
        assert_eq!((place.stage, place.cell), (stages[i].into(), cells[i].into()));
        assert_eq!(place.index, indices[i] as u64);
        let counted = order.quotas().count_of(place.cell, 48) * place.stage as u64;
        assert_eq!(order.row_of(place.cell, counted + place.index), Some(5 + i as u64));
    }
}
