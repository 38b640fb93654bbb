"""Properties of schedules and of the order of rows."""

import json

import numpy as np
import pytest

from marin.errors import MarinError
from marin.mixture import Phase, Schedule, Specification, constant_batches, load, tilted

STAGES = constant_batches(64 * 512, [(0.0, 512), (0.5, 1024)])


def small_spec() -> Specification:
    tokens = {"c00q0": 40_000, "c00q4": 160_000, "c01q0": 0, "c01q3": 100_000}
    phases = [("early", 800_000, 1.0), ("late", 200_000, 2.0)]
    return tilted("small", tokens, phases, epoch_cap=20.0)


@pytest.fixture(scope="module")
def small() -> Schedule:
    return Schedule.of(small_spec(), STAGES, horizon=4_000_000, seed=3)


def test_runs_are_whole_batches_that_cover_every_row(small: Schedule) -> None:
    row = step = 0
    for run in small.runs:
        assert (run.first_row, run.first_step) == (row, step)
        row, step = run.end_row, run.end_step
    assert (row, step) == (small.rows, small.steps) == (len(small.order), small.steps)
    assert abs(small.tokens - small.horizon) <= 64 * 512 / 2
    assert [(run.phase, run.seq_len) for run in small.runs] == [
        ("early", 512),
        ("early", 1024),
        ("late", 1024),
    ]


def test_every_row_has_its_own_place_and_every_stage_its_counts(small: Schedule) -> None:
    places = small.order.rows(0, small.rows)
    for stage, counts in enumerate(small.order.stage_rows):
        for cell, count in enumerate(counts):
            mine = places.position[(places.stage == stage) & (places.cell == cell)]
            assert sorted(mine) == list(range(count))
    assert small.order.stage_rows.sum() == small.rows


def test_any_rows_are_located_as_in_sequence(small: Schedule) -> None:
    rows = np.random.default_rng(0).permutation(small.rows)[:500]
    whole = small.order.rows(0, small.rows)
    for found, expected in zip(small.order.locate(rows), whole, strict=True):
        np.testing.assert_array_equal(found, expected[rows])


def test_rows_of_a_cell_between_two_steps_are_those_of_the_order(small: Schedule) -> None:
    first, last = small.row_at(10), small.row_at(70)
    places = small.order.rows(first, last - first)
    for number, cell in enumerate(small.cells):
        expected = first + np.flatnonzero(places.cell == number)
        np.testing.assert_array_equal(small.order.rows_of(cell, first, last), expected)


def test_counts_stay_near_their_targets_at_every_row(small: Schedule) -> None:
    distance, _, _ = small.order.worst(0, small.rows)
    assert distance <= small.order.bound <= 1.5


def test_the_json_gives_the_same_schedule_back(small: Schedule) -> None:
    again = Schedule.from_json(json.loads(json.dumps(small.to_json())))
    assert again == small
    assert again.fingerprint == small.fingerprint
    assert Schedule.of(small_spec(), STAGES, horizon=4_000_000).fingerprint != small.fingerprint


def test_each_epoch_gives_every_document_once_in_another_order(small: Schedule) -> None:
    documents = small.order.documents("c00q4", 1000, 500, 2500)
    for epoch in (1, 2):
        mine = documents.document[documents.epoch == epoch]
        assert len(set(mine)) == len(mine) == 1000
    first, second = (documents.document[documents.epoch == epoch] for epoch in (1, 2))
    assert (first == second).mean() < 0.02


def test_shortening_moves_the_switch_and_keeps_what_was_consumed(small: Schedule) -> None:
    shorter = small.revised(50, horizon=3_000_000)
    row = small.row_at(50)
    for before, after in zip(small.order.rows(0, row), shorter.order.rows(0, row), strict=True):
        np.testing.assert_array_equal(before, after)
    late = next(run for run in shorter.runs if run.phase == "late")
    assert late.first_step == round(0.8 * 3_000_000 / (64 * 512))
    assert shorter.order.worst(0, shorter.rows)[0] <= 1.5


def test_a_ten_row_cell_follows_the_exhaustion_policy() -> None:
    spec = Specification(
        name="tiny",
        phases=(
            Phase("one", 64 * 100, {"a": 0.5, "b": 0.5}),
            Phase("two", 64 * 100, {"a": 0.0, "b": 1.0}),
        ),
        available_tokens={"a": 64 * 10, "b": 64 * 1000},
        epoch_cap=1.0,
    )
    stages = constant_batches(64 * 10, [(0.0, 64)])
    with pytest.raises(MarinError, match=r"a \(3200 tokens planned, 640 allowed\)"):
        Schedule.of(spec, stages)
    repeated = Schedule.of(spec, stages, exhaustion="repeat")
    assert list(repeated.order.counts(200)) == [50, 150]
    dropped = Schedule.of(spec, stages, exhaustion="drop-and-renormalize")
    assert list(dropped.order.counts(20)) == [10, 10]
    assert list(dropped.order.counts(200)) == [10, 190]


def test_the_preset_holds_its_published_facts() -> None:
    spec = load("harrier-2026.08.18")
    assert [phase.tokens for phase in spec.phases] == [15 * 10**12, 3_750_000_000_000]
    assert sum(spec.available_tokens.values()) == 23_106_103_007_622
    assert len(spec.cells) == 200
    schedule = Schedule.of(spec, constant_batches(11264 * 4096, [(0.0, 4096)]))
    assert schedule.order.counts(schedule.rows)[spec.cells.index("c22q0")] > 0
    assert schedule.order.bound <= 1.5
