"""The Rust core against the big-integer reference, and both against exact rational targets."""

import random
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from marin._native import RowOrder
from marin.mixture import reference

WEIGHTS = st.one_of(
    st.floats(0, 1),
    st.sampled_from([0.0, 0.5, 0.999997, 3e-6, 1e-300, 5e-324]),
    st.floats(0, 1).map(lambda w: w**20),
)
ROWS = st.one_of(st.integers(1, 300), st.integers(1, 1 << 40), st.integers(1, 1 << 60))


@st.composite
def runs(draw: st.DrawFn) -> list[reference.Phase]:
    cells = draw(st.integers(1, 12))
    vectors = st.lists(WEIGHTS, min_size=cells, max_size=cells).filter(any)
    return draw(st.lists(st.tuples(ROWS, vectors), min_size=1, max_size=3))


@settings(deadline=None, max_examples=60)
@given(runs(), st.floats(0, 1))
def test_rust_and_reference_agree_and_stay_near_exact_targets(
    phases: list[reference.Phase], at: float
) -> None:
    order = RowOrder([(0, phases)], [0], [(0, 1)], 0)
    quotas = reference.Quotas(phases)
    end = order.rows_total
    assert order.bound == quotas.bound
    first = min(int(at * end), end - 1)
    rows = [n for n in {0, first, first + 1, first + 2, end - 1} if n < end]
    _, cells, indices = order.locate(np.array(rows, np.int64))
    for n, cell, index in zip(rows, cells, indices, strict=True):
        assert (cell, index) == quotas.locate(n)
        assert order.rows_of(int(cell), int(index), 1)[0] == n
    for n in rows:
        counts = order.counts_at(n).tolist()
        assert sum(counts) == n
        assert counts == quotas.counts_at(n)
        for count, target in zip(counts, reference.exact_targets(phases, n), strict=True):
            assert abs(count - target) <= Fraction(3, 2)


def test_no_row_of_any_run_is_outside_the_printed_bound() -> None:
    """In nodes of few rows the fraction of a split is not quite that of the phase."""
    for seed in range(500):
        draw = random.Random(seed)
        cells = draw.choice([3, 5, 8, 20, 40])
        phases = [
            (draw.randint(70, 2000), [draw.random() ** 3 + 1e-9 for _ in range(cells)])
            for _ in range(draw.randint(1, 4))
        ]
        order = RowOrder([(0, phases)], [0], [(0, 1)], 0)
        assert order.worst(0, order.rows_total, 1, 1)[0] <= order.bound


def test_an_order_of_the_weights_does_not_change_a_cell() -> None:
    weights = [0.1, 0.2, 0.3, 0.4]
    integers = reference.integer_weights(weights)
    assert reference.integer_weights(weights[::-1]) == integers[::-1]
