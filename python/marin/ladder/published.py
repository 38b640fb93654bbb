"""The published forecast, which is the baseline: `L = floor + A C^-alpha` at each matched progress.

Every progress point is fitted alone, by least squares of log(L - floor) on log C over the rungs
that have reached it; rungs are read between their evaluations by linear interpolation. A rung that
ended early is extended at the trend of the others plus its own last offset, as the published fit
did for its fourth rung.
"""

from collections.abc import Callable, Sequence

import numpy as np

from marin.ladder.grid import Array

FLOOR = 1.5  # nats per token
REACH = 0.002  # of a run: an evaluation this close to a progress counts as being there
_OFFSET_TAIL = 0.25  # of a run: the part whose mean offset an early end carries on

Curves = Sequence[tuple[Array, Array]]


def interpolate(curve: tuple[Array, Array], progress: Array) -> Array:
    """The curve at `progress` [m]; NaN outside of what it has seen."""
    seen, values = curve
    inside = (progress >= seen[0] - REACH) & (progress <= seen[-1] + REACH)
    return np.where(inside, np.interp(progress, seen, values), np.nan)


def power_law(compute: Array, values: Array, floor: float) -> tuple[float, float]:
    """(log A, alpha) of `values = floor + A compute^-alpha`: least squares in logs, NaNs left out.

    Fewer than two usable points give NaN.
    """
    usable = np.isfinite(values) & (values > floor)
    if np.unique(compute[usable]).size < 2:
        return float("nan"), float("nan")
    slope, intercept = np.polyfit(np.log(compute[usable]), np.log(values[usable] - floor), 1)
    return float(intercept), float(-slope)


def baseline(
    curves: Curves, compute: Array, target_compute: float, progress: Array, floor: float = FLOOR
) -> Array:
    """The baseline's forecast at each `progress` [m] for a run of `target_compute` FLOPs.

    Args:
      curves: progress and values of each rung [r].
      compute: FLOPs of each rung [r].
    """
    values = np.array([interpolate(curve, progress) for curve in curves])
    for rung in range(len(curves)):
        rest = carry_on(curves, compute, rung, progress, floor)
        values[rung] = np.where(np.isnan(rest), values[rung], rest)
    forecasts = np.empty(len(progress))
    for index in range(len(progress)):
        log_scale, alpha = power_law(compute, values[:, index], floor)
        forecasts[index] = floor + np.exp(log_scale - alpha * np.log(target_compute))
    return forecasts


def carry_on(curves: Curves, compute: Array, rung: int, progress: Array, floor: float) -> Array:
    """The rest of a rung that ended early: its values at each `progress` [m] beyond its end.

    NaN up to its end, and everywhere where fewer than two other rungs went further.
    """
    ends = np.array([curve[0][-1] for curve in curves])
    carried = np.full(len(progress), np.nan)
    beyond = progress > ends[rung] + REACH
    others = np.flatnonzero(ends > ends[rung] + REACH).tolist()
    if not beyond.any() or len(others) < 2:
        return carried
    known, seen = curves[rung]
    tail = known >= known[-1] - _OFFSET_TAIL
    trend = _trend([curves[i] for i in others], compute[others], compute[rung], floor)
    offsets = seen[tail] - trend(known[tail])
    offsets = offsets[np.isfinite(offsets)]
    if len(offsets):
        carried[beyond] = trend(progress[beyond]) + offsets.mean()
    return carried


def _trend(curves: Curves, compute: Array, at: float, floor: float) -> Callable[[Array], Array]:
    """The matched-progress fits of `curves`, read at the compute `at`."""

    def value(progress: Array) -> Array:
        rows = np.array([interpolate(curve, progress) for curve in curves])
        fits = [power_law(compute, rows[:, i], floor) for i in range(len(progress))]
        return np.array([floor + np.exp(scale - alpha * np.log(at)) for scale, alpha in fits])

    return value
