"""What a forecast leans on: the floor, and rungs that do not follow the others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from marin.ladder.backtest import LARGEST, OTHER_RUNG, Backtest, backtests, summarize
from marin.ladder.forecast import Model, Target, forecast, is_loss
from marin.ladder.grid import MINIMUM_RUNGS, Ladder

_SHARES = (0.0, 0.4, 0.5, 0.6, 0.7, 0.8)  # of the lowest value
_NORMAL = 3.29  # a 90 % interval in standard deviations
OFF_TREND = 2.0  # standard deviations


@dataclass(frozen=True)
class Sensitivity:
    """What one floor would say: the end of the target, and the backtests' mean absolute error."""

    floor: float
    middle: float
    low: float
    high: float
    backtest_error: float | None


def floor_sensitivity(ladder: Ladder, target: Target, model: Model) -> list[Sensitivity]:
    """The forecast under fixed floors; nothing for metrics that have none."""
    lowest = min(min(rung.metrics[ladder.metric][1]) for rung in ladder.fitted)
    if lowest <= 0 or not is_loss(ladder.metric):
        return []
    results = []
    for share in _SHARES:
        fixed = replace(model, floor=share * lowest)
        band = forecast(ladder, target, fixed).band
        summary = summarize(backtests(ladder, fixed))
        results.append(
            Sensitivity(
                float(fixed.floor or 0), float(band.middle[-1]), float(band.low[-1]),
                float(band.high[-1]), summary.error if summary else None,
            )
        )  # fmt: skip
    return results


def deviation(test: Backtest) -> float:
    """How far a held-out rung lies from its forecast, in that forecast's standard deviations."""
    apart = float(np.mean(test.actual - test.forecast))
    scale = float(np.mean(test.high - test.low)) / _NORMAL
    return apart / scale if scale else math.copysign(math.inf, apart) if apart else 0.0


def off_trend(ladder: Ladder, model: Model) -> list[tuple[str, float]]:
    """Rungs beyond two standard deviations of what the others say, worst first.

    The worst is set aside before the rest is judged again, since one bad rung bends the trend that
    its neighbours are held against. Nothing is said about ladders of three rungs.
    """
    named: list[tuple[str, float]] = []
    rungs = ladder.fitted
    while len(rungs) > MINIMUM_RUNGS:
        part = replace(ladder, rungs=rungs)
        worst = max(_deviations(part, model), key=lambda entry: abs(entry[1]))
        if abs(worst[1]) < OFF_TREND:
            break
        named.append(worst)
        rungs = tuple(rung for rung in rungs if rung.name != worst[0])
    return named


def _deviations(ladder: Ladder, model: Model) -> Sequence[tuple[str, float]]:
    tests = backtests(ladder, model, (LARGEST, OTHER_RUNG))
    return [(test.rung, deviation(test)) for test in tests]
