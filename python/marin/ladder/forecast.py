"""From the rungs' evaluations to the whole trajectory of a bigger run, with 90 % intervals."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from marin.errors import MarinError
from marin.ladder.grid import MINIMUM_RUNGS, Array, Ladder, Rung
from marin.ladder.joint import LOSS, OTHER, Points
from marin.ladder.posterior import Measure, Posterior, Sizes, infer
from marin.ladder.published import FLOOR, REACH, baseline

Mask = npt.NDArray[np.bool_]

LOW, MIDDLE, HIGH = 0.05, 0.5, 0.95
_LOSS_NAMES = ("loss", "nll", "bpb", "cross_entropy", "perplexity")
_STEP = 0.05  # of a run, between the points of a forecast trajectory
# Nats per token. A floor belongs to the text: rungs far above it do not raise it. Fitted floors of
# text are 1.5 to 1.9; those of bits per byte are lower still.
_HIGHEST_FLOOR = 2.5


@dataclass(frozen=True)
class Model:
    """What backtests choose between; the defaults are what they chose (`benches/ladder.py`).

    Chosen on four rungs, so over-fitted in part: the winner by the later halves alone forecasts the
    largest rung worse than the baseline (0.011 against 0.006 nats). The choice needs both
    protocols, and its own backtest error is an optimistic estimate of the next.

    Args:
      measure: of compute: total FLOPs, parameters times tokens, or an average over both.
      burn_in: evaluations up to this progress take no part in what later ones say. They show the
        warm-up and the first steps, which a rung counts by the step and not by its progress.
      exponent_varies: whether the exponent may drift along a run.
      floor: fixed, or None to integrate over it.
    """

    measure: Measure = "flops"
    burn_in: float = 0.1
    exponent_varies: bool = True
    floor: float | None = None


@dataclass(frozen=True)
class Target:
    """The run to forecast: its total FLOPs, tokens and active parameters."""

    name: str
    train_flops: float
    tokens: float
    active_params: float


@dataclass(frozen=True)
class Band:
    """Forecast values at each progress [m]: the median and a 90 % interval."""

    progress: Array
    middle: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Forecast:
    """The target's trajectory, the baseline's beside it, and the rungs that ended early.

    `floor` is (mean, low, high); `noise` the relative deviations of a whole rung, of drift within
    one, and of one evaluation.
    """

    target: Target
    band: Band
    baseline: Array
    extended: dict[str, Band]
    floor: tuple[float, float, float]
    noise: tuple[float, float, float]


def is_loss(metric: str) -> bool:
    """Whether a metric falls towards a floor, by its name."""
    return any(part in metric.lower() for part in _LOSS_NAMES)


def highest_floor(metric: str) -> float:
    """What no floor of a metric lies above; 0 for a metric without one."""
    if "perplexity" in metric.lower():
        return float("inf")
    return _HIGHEST_FLOOR if is_loss(metric) else 0.0


def find_target(ladder: Ladder, text: str) -> Target:
    """A rung of the grid without evaluations by name, or `FLOPS[,TOKENS,PARAMS]`.

    Raises:
      MarinError: no such rung, no such figures, or a run that the rungs already span.
    """
    rung = ladder.rung(text)
    if rung is not None:
        if ladder.metric in rung.metrics:
            raise MarinError(
                f"--target {text}: that rung has evaluations of {ladder.metric}, so it is fitted, "
                "not forecast; name a rung without evaluations or give FLOPs"
            )
        target = Target(rung.name, rung.train_flops, rung.tokens, rung.active_params)
    else:
        target = _figures(ladder, text)
    largest = max(ladder.fitted, key=lambda rung: rung.train_flops)
    if target.train_flops <= largest.train_flops:
        raise MarinError(
            f"--target {text}: {target.train_flops:.3g} FLOPs lie inside the fitted range, which "
            f"ends with {largest.name} at {largest.train_flops:.3g}; an extrapolation needs more"
        )
    return target


def _figures(ladder: Ladder, text: str) -> Target:
    names = ", ".join(rung.name for rung in ladder.rungs if ladder.metric not in rung.metrics)
    try:
        figures = [float(part) for part in text.split(",")]
    except ValueError:
        figures = []
    if len(figures) not in (1, 3) or not all(0 < figure < float("inf") for figure in figures):
        raise MarinError(
            f"--target {text}: expected a rung without evaluations ({names or 'it has none'}) or "
            "FLOPS or FLOPS,TOKENS,PARAMS as positive numbers"
        )
    if len(figures) == 3:
        return Target(f"{figures[0]:.3g} FLOPs", figures[0], figures[1], figures[2])
    # As the largest rung grown at its tokens per parameter: FLOPs go as tokens times parameters.
    largest = max(ladder.fitted, key=lambda rung: rung.train_flops)
    growth = (figures[0] / largest.train_flops) ** 0.5
    tokens, params = growth * largest.tokens, growth * largest.active_params
    return Target(f"{figures[0]:.3g} FLOPs", figures[0], tokens, params)


def forecast(ladder: Ladder, target: Target, model: Model) -> Forecast:
    """Forecasts the target at every 5 % of its run, and the rest of the rungs that ended early.

    Raises:
      MarinError: the floor is not below every value, or no progress point has enough rungs.
    """
    rungs = ladder.fitted
    observed, values = observations(ladder)
    check_floor(values, model.floor, ladder)
    _check_matched(ladder)
    grid = np.arange(1, round(1 / _STEP) + 1) * _STEP
    seen = observed.progress
    grid = grid[(grid >= seen.min() - _STEP / 2) & (grid <= seen.max() + _STEP / 2)]
    wanted = Points(np.full(len(grid), len(rungs)), grid)
    unfinished = [
        (index, grid[grid > rung.curve(ladder.metric)[0][-1] + _STEP / 2])
        for index, rung in enumerate(rungs)
    ]
    for index, beyond in unfinished:
        wanted = wanted.join(Points(np.full(len(beyond), index), beyond))
    sizes = sizes_of([*rungs, target])
    parts = predict(observed, values, wanted, sizes, model, ladder.metric)
    band = _band(parts, wanted, len(rungs))
    extended = {
        rungs[index].name: _band(parts, wanted, index)
        for index, beyond in unfinished
        if len(beyond)
    }
    posterior = parts[-1][1]
    return Forecast(
        target=target,
        band=band,
        baseline=baseline(
            [rung.curve(ladder.metric) for rung in rungs],
            np.array([rung.train_flops for rung in rungs]),
            target.train_flops,
            grid,
            baseline_floor(values, model.floor),
        ),
        extended=extended,
        floor=posterior.floor,
        noise=posterior.noise,
    )


def observations(ladder: Ladder) -> tuple[Points, Array]:
    """The evaluations of all fitted rungs, [n]; rungs count in the ladder's order."""
    curves = [rung.curve(ladder.metric) for rung in ladder.fitted]
    indices = [np.full(len(curve[0]), index) for index, curve in enumerate(curves)]
    points = Points(np.concatenate(indices), np.concatenate([curve[0] for curve in curves]))
    return points, np.concatenate([curve[1] for curve in curves])


def sizes_of(runs: Sequence[Rung | Target]) -> Sizes:
    flops, tokens, params = (
        np.log([getattr(run, name) for run in runs])
        for name in ("train_flops", "tokens", "active_params")
    )
    return Sizes(flops, params + tokens, tokens - params)


def baseline_floor(values: Array, floor: float | None) -> float:
    """The given floor, else the published one, else 0 where values lie below that."""
    if floor is not None:
        return floor
    return FLOOR if float(values.min()) > FLOOR else 0.0


def check_floor(values: Array, floor: float | None, ladder: Ladder) -> None:
    lowest = float(values.min())
    if floor is not None and not 0 <= floor < lowest:
        raise MarinError(
            f"--floor {floor:g}: the lowest {ladder.metric} is {lowest:.6g}; a floor lies between "
            "0 and that"
        )


def _check_matched(ladder: Ladder) -> None:
    """Values can only be compared at a progress that enough rungs have been at."""
    curves = [rung.curve(ladder.metric)[0] for rung in ladder.fitted]
    first, last = (np.array([curve[end] for curve in curves]) for end in (0, -1))
    # Where most rungs are, one of them begins.
    there = (first <= first[:, None] + REACH) & (last >= first[:, None] - REACH)
    if there.sum(axis=1).max() < MINIMUM_RUNGS:
        spans = ", ".join(
            f"{rung.name} {begin:.0%} to {end:.0%}"
            for rung, begin, end in zip(ladder.fitted, first, last, strict=True)
        )
        raise MarinError(
            f"{ladder.source}: no progress point has {MINIMUM_RUNGS} rungs with evaluations of "
            f"{ladder.metric} ({spans}); rungs are compared at the same progress"
        )


def predict(
    observed: Points, values: Array, wanted: Points, sizes: Sizes, model: Model, metric: str
) -> list[tuple[Mask, Posterior]]:
    """Posteriors over parts of `wanted`: masks [m] that cover it once, the latest part last.

    What lies in the burn-in is forecast from everything, what lies after it from what lies after.
    """
    loss = is_loss(metric)
    scales = LOSS if loss else OTHER
    if not model.exponent_varies:
        scales = replace(scales, slope_change=0.0)
    late = wanted.progress > model.burn_in + 1e-3
    kept = observed.progress > model.burn_in + 1e-3
    if len(np.unique(observed.rung[kept])) < 2:
        kept = np.ones(len(observed), bool)
    parts = []
    for mask, use in ((~late, np.ones(len(observed), bool)), (late, kept)):
        if mask.any():
            posterior = infer(
                observed.take(use), values[use], wanted.take(mask), sizes, scales,
                measure=model.measure, floor=model.floor, highest_floor=highest_floor(metric),
            )  # fmt: skip
            parts.append((mask, posterior))
    return parts


def quantiles(parts: list[tuple[Mask, Posterior]], count: int) -> Array:
    """Low, middle and high [3, m] over all parts."""
    result = np.empty((3, count))
    for mask, posterior in parts:
        result[:, mask] = [posterior.quantile(q) for q in (LOW, MIDDLE, HIGH)]
    return result


def _band(
    parts: list[tuple[Mask, Posterior]],
    wanted: Points,
    rung: int,
) -> Band:
    own = wanted.rung == rung
    low, middle, high = quantiles(parts, len(wanted))[:, own]
    return Band(wanted.progress[own], middle, low, high)
