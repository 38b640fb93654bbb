"""Backtests: what a model would have said about evaluations it has not seen.

Three ways to hold out. `largest`: all of the largest rung, from the smaller ones, which is the
question that a forecast asks. `later half`: the second half of one rung, from its first half and
the other rungs, for each rung in turn. `other rung`: all of one smaller rung; an interpolation,
reported but not used to choose a model. The baseline sees the same evaluations: it carries on a
rung whose first half it has seen as it does any rung that ended early, at its own last offset.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from marin.ladder.forecast import (
    Model,
    baseline_floor,
    observations,
    predict,
    quantiles,
    sizes_of,
)
from marin.ladder.grid import MINIMUM_RUNGS, Array, Ladder
from marin.ladder.joint import Points
from marin.ladder.published import baseline, carry_on

LARGEST, LATER_HALF, OTHER_RUNG = "largest", "later half", "other rung"
CHOOSING = (LARGEST, LATER_HALF)
_HALF = 0.5


@dataclass(frozen=True)
class Backtest:
    """One held-out part of one rung: values [n] at progress [n], and what was forecast."""

    protocol: str
    rung: str
    progress: Array
    actual: Array
    forecast: Array
    low: Array
    high: Array
    baseline: Array

    @property
    def error(self) -> float:
        """Mean absolute error."""
        return float(np.abs(self.forecast - self.actual).mean())

    @property
    def baseline_error(self) -> float:
        """NaN where the baseline forecasts no point."""
        apart = np.abs(self.baseline - self.actual)
        return float(np.nanmean(apart)) if np.isfinite(apart).any() else float("nan")

    @property
    def covered(self) -> float:
        """The share of points inside the 90 % interval."""
        return float(((self.low <= self.actual) & (self.actual <= self.high)).mean())


@dataclass(frozen=True)
class Summary:
    """Over the points of all backtests of the given protocols."""

    points: int
    error: float
    baseline_error: float
    covered: float


def backtests(
    ladder: Ladder, model: Model, protocols: tuple[str, ...] = (*CHOOSING, OTHER_RUNG)
) -> list[Backtest]:
    """Runs every backtest that the ladder has enough rungs for."""
    points, values = observations(ladder)
    sizes = sizes_of(ladder.fitted)
    results = []
    for protocol, rung, held in _folds(ladder, points.rung, points.progress):
        if protocol not in protocols:
            continue
        seen = ~held
        wanted = points.take(held)
        parts = predict(points.take(seen), values[seen], wanted, sizes, model, ladder.metric)
        low, middle, high = quantiles(parts, len(wanted))
        results.append(
            Backtest(
                protocol, ladder.fitted[rung].name, wanted.progress, values[held],
                middle, low, high,
                _baseline(
                    ladder, rung, points.take(seen), values[seen], wanted.progress,
                    baseline_floor(values[seen], model.floor),
                ),
            )
        )  # fmt: skip
    return results


def summarize(tests: list[Backtest], protocols: tuple[str, ...] = CHOOSING) -> Summary | None:
    """None where none of the protocols could be run."""
    chosen = [test for test in tests if test.protocol in protocols]
    if not chosen:
        return None
    counts = np.array([len(test.actual) for test in chosen])
    total = counts.sum()

    def mean(values: list[float]) -> float:
        return float(counts @ np.array(values) / total)

    return Summary(
        int(total),
        mean([test.error for test in chosen]),
        mean([test.baseline_error for test in chosen]),
        mean([test.covered for test in chosen]),
    )


def _folds(
    ladder: Ladder, rung: npt.NDArray[np.int64], progress: Array
) -> Iterator[tuple[str, int, npt.NDArray[np.bool_]]]:
    count = len(ladder.fitted)
    whole = count > MINIMUM_RUNGS
    if whole:
        yield LARGEST, count - 1, rung == count - 1
    for index in range(count):
        held = (rung == index) & (progress > _HALF + 1e-3)
        if held.any() and ((rung == index) & ~held).any():
            yield LATER_HALF, index, held
    if whole:
        for index in range(count - 1):
            yield OTHER_RUNG, index, rung == index


def _baseline(
    ladder: Ladder, held: int, seen: Points, values: Array, wanted: Array, floor: float
) -> Array:
    """The published method at `wanted` progress of the held rung, from the evaluations seen."""
    rungs = np.unique(seen.rung)
    curves = [(seen.progress[seen.rung == r], values[seen.rung == r]) for r in rungs]
    compute = np.array([ladder.fitted[rung].train_flops for rung in rungs])
    if held in rungs:
        return carry_on(curves, compute, int(np.searchsorted(rungs, held)), wanted, floor)
    return baseline(curves, compute, ladder.fitted[held].train_flops, wanted, floor)
