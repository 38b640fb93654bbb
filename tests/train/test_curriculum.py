"""The curriculum as a function of tokens."""

import json
from itertools import pairwise
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.train.curriculum import Curriculum, Segment

SEGMENTS = (
    Segment(50, 16, 512, "one"),
    Segment(30, 8, 1_024, "one"),
    Segment(20, 8, 1_024, "two"),
)


def test_rate_warms_up_over_one_percent_and_ends_on_the_floor() -> None:
    plan = Curriculum.plan(SEGMENTS, hidden=128)
    rates = [plan.at(step).rates.muonh for step in range(plan.steps)]
    assert rates[0] > 0
    assert rates[-1] == pytest.approx(0.05 * max(rates), rel=0.02)
    assert rates.index(max(rates)) == 0  # one of 100 steps is the warm-up
    assert all(later < earlier for earlier, later in pairwise(rates))


def test_qk_scale_grows_at_extensions_alone() -> None:
    plan = Curriculum.plan(SEGMENTS, hidden=128)
    assert plan.at(49).qk_scale == 1.0
    assert plan.at(50).qk_scale == pytest.approx(1 + 0.1 * 0.6931471805599453)
    assert plan.at(99).qk_scale == plan.at(50).qk_scale


def test_shorter_rows_keep_the_qk_scale_until_longer_ones_than_ever_come() -> None:
    lengths = (4_096, 65_536, 4_096, 65_536, 131_072)
    plan = Curriculum.plan([Segment(1, 8, length, "one") for length in lengths], hidden=128)
    long = 1 + 0.1 * log(16)
    longest = long * (1 + 0.1 * log(2))
    scales = [plan.at(step).qk_scale for step in range(plan.steps)]
    assert scales == pytest.approx([1.0, long, long, long, longest])


def steps(count: int) -> list[Segment]:
    return [Segment(count, 8, 128, "one")]


def fractions(plan: Curriculum) -> list[float]:
    return [plan.rate_fraction(plan.at(step).tokens_after) for step in range(plan.steps)]


@pytest.mark.parametrize("step", [0, 5, 10, 500])
def test_a_shortened_run_warms_up_to_its_peak_and_ends_on_the_floor(step: int) -> None:
    plan = Curriculum.plan(steps(1_000), hidden=64)
    for count in (900, 800):  # the second change begins where the first did
        shorter = fractions(plan.revised(step, steps(count)))
        plan = plan.revised(step, steps(count))
        assert max(shorter) == shorter[9] == 1.0
        assert shorter[-1] == pytest.approx(0.05)
        assert shorter[:10] == fractions(Curriculum.plan(steps(1_000), hidden=64))[:10]
        falls = [a - b for a, b in pairwise(shorter[max(step, 10) - 1 :])]
        assert falls == pytest.approx([falls[0]] * len(falls))


def test_a_warm_up_that_the_new_end_cuts_turns_half_way() -> None:
    plan = Curriculum.plan(steps(1_000), hidden=64).revised(2, steps(10))
    assert fractions(plan) == pytest.approx(
        [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.4625, 0.325, 0.1875, 0.05]
    )


def test_a_change_that_keeps_the_end_keeps_every_rate() -> None:
    plan = Curriculum.plan(steps(1_000), hidden=64)
    for step in (0, 5, 500, 999):
        other = plan.revised(step, [Segment(999, 8, 128, "one"), Segment(1, 8, 128, "two")])
        assert fractions(other) == fractions(plan)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.builds(
            Segment,
            steps=st.integers(1, 10**6),
            batch_size=st.integers(1, 2**14),
            seq_len=st.sampled_from([512, 4_096, 262_144]),
            phase=st.sampled_from(["one", "two"]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.data(),
)
def test_steps_tile_rows_and_tokens(segments: list[Segment], data: st.DataObject) -> None:
    plan = Curriculum.plan(segments, hidden=256)
    assert Curriculum.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    step = data.draw(st.integers(0, plan.steps - 1))
    here = plan.at(step)
    if step + 1 < plan.steps:
        after = plan.at(step + 1)
        assert after.tokens == here.tokens_after
        assert after.first_row == here.first_row + here.segment.batch_size
    else:
        assert here.tokens_after == plan.tokens
    assert 0 < plan.rate_fraction(here.tokens_after) <= 1


@pytest.mark.parametrize("step", [-1, 100])
def test_a_step_outside_the_plan_is_an_error(step: int) -> None:
    with pytest.raises(IndexError, match="100 steps"):
        Curriculum.plan(SEGMENTS, hidden=128).at(step)
