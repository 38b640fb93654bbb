"""What backtests promise, and that they chose the model that is in use."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from marin.ladder import Backtest, Ladder, Model, backtests, summarize
from marin.ladder.backtest import LARGEST, LATER_HALF, OTHER_RUNG
from marin.ladder.check import off_trend


@pytest.fixture(scope="module")
def tests(published: Ladder) -> list[Backtest]:
    return backtests(published, Model())


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


def test_held_out_evaluations_do_not_reach_the_forecast(published: Ladder) -> None:
    changed = replace(
        published, rungs=tuple(_spoiled(r, published.metric) for r in published.rungs)
    )
    model = Model(floor=1.5)
    one = backtests(published, model, (LARGEST,))[0]
    other = backtests(changed, model, (LARGEST,))[0]
    np.testing.assert_array_equal(one.forecast, other.forecast)
    np.testing.assert_array_equal(one.baseline, other.baseline)


def _spoiled(rung: object, metric: str) -> object:
    if rung.name != "d2048":
        return rung
    steps, values = rung.metrics[metric]
    return replace(rung, metrics={metric: (steps, tuple(value + 0.5 for value in values))})


def test_a_rung_off_the_trend_is_named(truth: Callable[..., object]) -> None:
    ladder, _, _ = truth(rungs=5, points=4, noise=0.001).ladder()
    assert off_trend(ladder, Model()) == []
    steps, values = ladder.rungs[2].metrics["loss"]
    bad = replace(ladder.rungs[2], metrics={"loss": (steps, tuple(v * 1.05 for v in values))})
    rungs = (*ladder.rungs[:2], bad, *ladder.rungs[3:])
    named = off_trend(replace(ladder, rungs=rungs), Model())
    assert [name for name, _ in named] == ["r2"]
    assert named[0][1] > 2
