"""Properties of schedules and of the order of rows."""

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.errors import MarinError
from marin.mixture import Phase, Schedule, Specification, Stage, constant_batches, load, tilted

CASES = Path(__file__).parents[1] / "cases" / "mixture"
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
    spec = load(CASES / "ten_rows.toml")
    stages = constant_batches(64 * 10, [(0.0, 64)])
    with pytest.raises(MarinError, match=r"a \(3200 tokens planned, 640 allowed\)"):
        Schedule.of(spec, stages)
    repeated = Schedule.of(spec, stages, exhaustion="repeat")
    assert list(repeated.order.counts(200)) == [50, 150]
    dropped = Schedule.of(spec, stages, exhaustion="drop-and-renormalize")
    assert list(dropped.order.counts(20)) == [10, 10]
    assert list(dropped.order.counts(200)) == [10, 190]


def test_a_new_mixture_from_a_step_on_keeps_the_history() -> None:
    first = Schedule.of(small_spec(), STAGES, horizon=4_000_000, seed=3)
    tokens = dict(small_spec().available_tokens) | {"c07q2": 500_000}
    other = tilted("other", tokens, [("only", 1, 0.5)])
    second = first.revised(60, specification=other)
    row = first.row_at(60)
    assert second.cells == (*first.cells, "c07q2")
    for before, after in zip(first.order.rows(0, row), second.order.rows(0, row), strict=True):
        np.testing.assert_array_equal(before, after)
    assert second.order.worst(0, second.rows)[0] <= 2.0
    again = Schedule.from_json(json.loads(json.dumps(second.to_json())))
    np.testing.assert_array_equal(again.order.rows(0, 4000).cell, second.order.rows(0, 4000).cell)
    with pytest.raises(MarinError, match="a horizon of 1000 tokens at step 60, where"):
        first.revised(60, horizon=1000)


@settings(deadline=None, max_examples=40)
@given(
    caps=st.lists(st.one_of(st.none(), st.floats(0.5, 30)), min_size=4, max_size=4),
    tokens=st.lists(st.integers(64, 4000), min_size=4, max_size=4),
    steps=st.lists(st.integers(0, 60), min_size=3, max_size=3),
    exhaustion=st.sampled_from(["repeat", "drop-and-renormalize"]),
)
def test_no_revision_changes_a_count_before_its_step(caps, tokens, steps, exhaustion) -> None:
    """Whatever cap and tokens it brings."""

    def spec(cap: float | None, available: int) -> Specification:
        phases = (
            Phase("one", 3, {"a": 0.5, "b": 0.25, "c": 0.25}),
            Phase("two", 1, {"a": 0.25, "b": 0.25, "c": 0.5}),
        )
        cells = {"a": available, "b": 10**6, "c": 2000}
        return Specification("capped", phases, cells, epoch_cap=cap)

    stages = (Stage(0.0, 8, 4), Stage(0.5, 16, 2))
    specs = list(map(spec, caps, tokens))
    schedule = Schedule.of(specs[0], stages, horizon=4096, exhaustion=exhaustion)
    for step, specification in zip(steps, specs[1:], strict=True):
        revised = schedule.revised(step, specification=specification)
        row = schedule.row_at(step)
        for before, after in zip(
            schedule.order.rows(0, row), revised.order.rows(0, row), strict=True
        ):
            np.testing.assert_array_equal(before, after)
        assert list(schedule.order.counts(row)) == list(revised.order.counts(row))
        schedule = revised


@pytest.mark.parametrize("step", [0, 50, 60])
def test_a_revision_replaces_those_of_its_step_and_later(small: Schedule, step: int) -> None:
    other = tilted("other", dict(small_spec().available_tokens), [("only", 1, 0.5)])
    twice = small.revised(60, specification=other).revised(step, horizon=3_000_000)
    assert [revision.step for revision in twice.revisions] == sorted({0, step})
    mixture = other if step == 60 else small_spec()
    assert twice == small.revised(step, specification=mixture, horizon=3_000_000)
    assert twice.revised(step, specification=other).horizon == 3_000_000


def test_a_small_run_repeats_as_the_big_one_would() -> None:
    spec = small_spec()
    small = Schedule.of(spec, STAGES, horizon=400_000, simulated_horizon=4_000_000)
    assert small.share == Fraction(1, 10)
    seen = small.order.documents("c00q4", 1000, 0, 350, small.share)
    assert len(set(seen.document)) == 100
    assert seen.epoch.max() == 3
    capped = tilted("capped", dict(spec.available_tokens), [("main", 1, 1.0)], epoch_cap=5.0)
    with pytest.raises(MarinError, match="over the cap of 5"):
        Schedule.of(capped, STAGES, horizon=400_000, simulated_horizon=4_000_000)


def test_a_shortened_run_sees_the_documents_of_the_run_that_was_planned() -> None:
    spec = small_spec()
    first = Schedule.of(spec, STAGES, horizon=1_000_000, simulated_horizon=4_000_000)
    shorter = first.revised(20, horizon=750_000)
    assert first.share == shorter.share == Fraction(1, 4)
    before, after = (s.order.documents("c00q4", 1000, 0, 700, s.share) for s in (first, shorter))
    np.testing.assert_array_equal(before.document, after.document)
    with pytest.raises(MarinError, match="simulated horizon 4000000, expected at least this run's"):
        first.revised(20, horizon=4_100_000)
    # As written before shares were those of the first revision.
    assert first.fingerprint == "87e4ccb63ba5e0f6b4e49a59642ef7ee"


def test_the_preset_is_exact_over_its_whole_run_and_its_smallest_cell_gets_rows() -> None:
    spec = load("harrier-2026.08.18")
    schedule = Schedule.of(spec, constant_batches(11264 * 4096, [(0.0, 4096)]))
    order = schedule.order
    assert schedule.rows == 4_577_633_280
    assert order.counts(schedule.rows)[spec.cells.index("c22q0")] == 77
    assert order.bound <= 1.5
    assert order.worst(0, schedule.rows, 11264 * 100)[0] <= order.bound
    for start in (0, schedule.runs[1].first_row - 500, schedule.rows - 1000):
        assert order.worst(start, start + 1000)[0] <= order.bound
