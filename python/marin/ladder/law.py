"""The laws themselves, by least squares: exponents and floor, without priors.

`L = floor + A_p C^-alpha_p` with one floor for all matched progress points p. Given the floor every
point is a line in logs, so the whole fit is a search over one number, done on a grid over all of
its range and then refined: there is no start to choose. Where rungs vary tokens per parameter,
`L = floor + A N^-a + B D^-b` (Hoffmann et al. 2022, approach 3) is fitted to their last values the
same way: a grid over both exponents, the rest by non-negative least squares.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, minimize_scalar, nnls

from marin.ladder.grid import MINIMUM_RUNGS, Array, Ladder
from marin.ladder.published import interpolate

_STEP = 0.05  # of a run, between matched progress points
_GRID = 200
_HIGHEST = 0.999  # of the lowest value: where the floor's range ends
_EXPONENTS = np.linspace(0.05, 1.0, 20)
_RATIO_SPREAD = 0.2  # of log tokens per parameter; less does not tell N from D


@dataclass(frozen=True)
class Law:
    """`floor + exp(log_scale) C^-exponent` at each progress [p]; `residual` [rungs, p], NaN where a
    rung has not been, relative to the value. All but `progress` is NaN where not all values
    are positive, as those of a power law are."""

    floor: float
    progress: Array
    exponent: Array
    log_scale: Array
    residual: Array


@dataclass(frozen=True)
class PartsLaw:
    """`floor + A N^-parameters + B D^-tokens`; the scales are those of log-centred N and D."""

    floor: float
    parameters: float
    tokens: float
    error: float  # root mean square, relative


def fit_law(ladder: Ladder, *, floor: float | None, burn_in: float = 0.0) -> Law:
    """Fits the law at every 5 % after `burn_in` that at least three rungs have reached, or at the
    last point that the ladder has."""
    progress, values = matched(ladder, burn_in)
    compute = np.array([rung.train_flops for rung in ladder.fitted])

    def residuals(candidate: float) -> Array:
        return _lines(compute, values, candidate)[2]

    lowest = float(np.nanmin(values))
    if lowest <= 0:
        none = np.full(len(progress), np.nan)
        return Law(np.nan, progress, none, none, np.full(values.shape, np.nan))
    chosen = floor if floor is not None else _search(residuals, lowest)
    log_scale, exponent, residual = _lines(compute, values, chosen)
    return Law(chosen, progress, exponent, log_scale, residual)


def matched(ladder: Ladder, burn_in: float) -> tuple[Array, Array]:
    """Progress [p] and the rungs' values [rungs, p] there, NaN where a rung has not been."""
    curves = [rung.curve(ladder.metric) for rung in ladder.fitted]
    progress = np.asarray(np.arange(1, round(1 / _STEP) + 1) * _STEP, np.float64)
    progress = progress[progress > burn_in + 1e-3]
    values = np.array([interpolate(curve, progress) for curve in curves])
    usable = np.isfinite(values).sum(axis=0) >= MINIMUM_RUNGS
    if not usable.any():
        return np.ones(1), np.array([[curve[1][-1]] for curve in curves])
    return progress[usable], values[:, usable]


def _lines(compute: Array, values: Array, floor: float) -> tuple[Array, Array, Array]:
    """log scale [p], exponent [p] and relative residuals [rungs, p]: a line in logs per point."""
    seen = np.isfinite(values)
    count = seen.sum(axis=0)
    x = np.where(seen, np.log(compute)[:, None], 0.0)
    y = np.log(np.where(seen, values - floor, 1.0))
    x_mean, y_mean = x.sum(axis=0) / count, y.sum(axis=0) / count
    centred = np.where(seen, x - x_mean, 0.0)
    exponent = -(centred * y).sum(axis=0) / (centred**2).sum(axis=0)
    log_scale = y_mean + exponent * x_mean
    fitted = floor + np.exp(log_scale - exponent * np.log(compute)[:, None])
    return log_scale, exponent, values / fitted - 1


def _search(residuals: Callable[[float], Array], lowest: float) -> float:
    def cost(candidate: float) -> float:
        return float(np.nansum(residuals(candidate) ** 2))

    grid = np.linspace(0.0, _HIGHEST * lowest, _GRID)
    best = int(np.argmin([cost(candidate) for candidate in grid]))
    low, high = grid[max(best - 1, 0)], grid[min(best + 1, _GRID - 1)]
    found = minimize_scalar(cost, bounds=(low, high), method="bounded", options={"xatol": 1e-10})
    return float(found.x)


def fit_parts(ladder: Ladder) -> PartsLaw | None:
    """The law in parameters and tokens; None where the ladder cannot tell them apart, or where
    values reach zero."""
    rungs = ladder.fitted
    params, tokens = (np.log([getattr(r, k) for r in rungs]) for k in ("active_params", "tokens"))
    if len(rungs) < 5 or np.ptp(tokens - params) < _RATIO_SPREAD:
        return None
    last = np.array([rung.curve(ladder.metric)[1][-1] for rung in rungs])
    if last.min() <= 0:
        return None
    params, tokens = params - params.mean(), tokens - tokens.mean()

    def solve(exponents: Array) -> tuple[Array, float]:
        columns = np.stack(
            [np.ones_like(last), np.exp(-exponents[0] * params), np.exp(-exponents[1] * tokens)],
            axis=1,
        )
        weights, error = nnls(columns / last[:, None], np.ones_like(last))
        return np.asarray(weights), float(error)

    def cost(exponents: Array) -> float:
        return solve(exponents)[1] if np.all(exponents > 0) else 1e9

    starts = [np.array([a, b]) for a in _EXPONENTS for b in _EXPONENTS]
    best = sorted(starts, key=cost)[:3]
    found = [
        minimize(
            cost,
            start,
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-15, "maxfev": 2000},
        )
        for start in best
    ]
    chosen = min(found, key=lambda result: result.fun)
    weights, error = solve(chosen.x)
    return PartsLaw(
        float(weights[0]), float(chosen.x[0]), float(chosen.x[1]), float(error / np.sqrt(len(last)))
    )
