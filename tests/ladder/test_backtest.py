"""What backtests promise, and that they chose the model that is in use."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from marin.ladder import Backtest, Ladder, Model, Rung, backtests, summarize
from marin.ladder.backtest import LARGEST, LATER_HALF, OTHER_RUNG
from marin.ladder.check import off_trend
from marin.ladder.joint import LOSS

RESULTS = Path(__file__).parents[2] / "benches" / "results"


@pytest.fixture(scope="module")
def tests(published: Ladder) -> list[Backtest]:
    return backtests(published, Model())


def test_the_model_in_use_is_the_one_that_backtests_chose(tests: list[Backtest]) -> None:
    chosen = json.loads((RESULTS / "ladder_selection.json").read_text())["chosen"]
    assert Model(**chosen["model"]) == Model()
    summary = summarize(tests)
    assert summary is not None
    assert asdict(summary) == pytest.approx(chosen["scores"]["all"], abs=2e-6)


def test_the_priors_in_use_are_among_those_that_were_compared() -> None:
    compared = json.loads((RESULTS / "ladder_priors.json").read_text())
    in_use = [list(LOSS.floor), {"centre": LOSS.noise[0], "spread": LOSS.noise_spread[0]}]
    assert in_use in [[entry["floor"], entry["rung_noise"]] for entry in compared]


@pytest.mark.parametrize("protocols", [(LARGEST, LATER_HALF), (LARGEST,), (LATER_HALF,)])
def test_error_is_at_least_a_third_below_the_baseline(
    tests: list[Backtest], protocols: tuple[str, ...]
) -> None:
    summary = summarize(tests, protocols)
    assert summary is not None
    assert summary.error <= 2 / 3 * summary.baseline_error


def test_intervals_cover_80_to_100_percent(tests: list[Backtest]) -> None:
    for protocols in ((LARGEST, LATER_HALF), (LARGEST, LATER_HALF, OTHER_RUNG)):
        summary = summarize(tests, protocols)
        assert summary is not None
        assert 0.8 <= summary.covered <= 1.0


def test_baseline_forecasts_the_largest_rung_from_the_three_smaller(tests: list[Backtest]) -> None:
    largest = next(test for test in tests if test.protocol == LARGEST)
    assert largest.rung == "d2048"
    assert len(largest.actual) == 16
    assert 0.003 < largest.baseline_error < 0.008


def test_the_baseline_carries_on_a_rung_at_its_own_last_offset(
    truth: Callable[..., object],
) -> None:
    ladder, _, _ = truth(points=20).ladder()
    rung = ladder.rungs[1]
    [(steps, values)] = rung.metrics.values()
    higher = replace(rung, metrics={"loss": (steps, tuple(value + 0.1 for value in values))})
    ladder = replace(ladder, rungs=(ladder.rungs[0], higher, *ladder.rungs[2:]))
    held = next(test for test in backtests(ladder, Model(), (LATER_HALF,)) if test.rung == "r1")
    np.testing.assert_allclose(held.baseline, held.actual, atol=1e-9)


@pytest.mark.parametrize("floor", [None, 1.5], ids=["fitted floor", "fixed floor"])
@pytest.mark.parametrize(
    ("protocol", "name"),
    [(LARGEST, "d2048"), *((LATER_HALF, rung) for rung in ("d768", "d1024", "d1536", "d2048"))],
)
def test_held_out_evaluations_do_not_reach_the_forecast(
    published: Ladder, protocol: str, name: str, floor: float | None
) -> None:
    by = 1.2 if floor is None else 0.9  # a fixed floor lies below all values
    begin = 0.0 if protocol == LARGEST else 0.5 + 1e-3
    rungs = tuple(
        _spoiled(rung, published.metric, begin, by) if rung.name == name else rung
        for rung in published.rungs
    )
    one, other = (
        next(t for t in backtests(ladder, Model(floor=floor), (protocol,)) if t.rung == name)
        for ladder in (published, replace(published, rungs=rungs))
    )
    assert np.all(one.actual != other.actual)
    for key in ("progress", "forecast", "low", "high", "baseline"):
        np.testing.assert_array_equal(getattr(one, key), getattr(other, key))


def _spoiled(rung: Rung, metric: str, begin: float, by: float) -> Rung:
    """The rung with values after `begin` that lie below all others."""
    steps, values = rung.metrics[metric]
    changed = (
        value - by if (step + 1) / rung.steps > begin else value
        for step, value in zip(steps, values, strict=True)
    )
    return replace(rung, metrics={metric: (steps, tuple(changed))})


def test_a_rung_off_the_trend_is_named(truth: Callable[..., object]) -> None:
    ladder, _, _ = truth(rungs=5, points=4, noise=0.001).ladder()
    assert off_trend(ladder, Model()) == []
    steps, values = ladder.rungs[2].metrics["loss"]
    bad = replace(ladder.rungs[2], metrics={"loss": (steps, tuple(v * 1.05 for v in values))})
    rungs = (*ladder.rungs[:2], bad, *ladder.rungs[3:])
    named = off_trend(replace(ladder, rungs=rungs), Model())
    assert [name for name, _ in named] == ["r2"]
    assert named[0][1] > 2
