"""All evaluations of all rungs as one Gaussian process above a floor.

The published ladder fits every progress point alone. Here the value L of rung r at progress p obeys

    link(L) = a(p) + s(p) x_r + t z_r + w (rung_r + drift_r(p) + evaluation),   link(L) = log(L - E)

with x = log compute (centred), z = log tokens per parameter (centred), E the floor. a and s are
smooth in a warped progress, so that neighbours in a run share their noise; `rung_r` is a whole
run's luck, `drift_r` its slow part, and both are carried on to progress that the run has not
reached. All scales are relative to L: `w = dlink/dlog L` turns them into the link's units, so the
floor enters through the curvature over rungs alone and not through the size of the noise.

Given floor, measure of compute and noise scales everything is linear and Gaussian (universal
kriging; Rasmussen & Williams 2006, sections 2.2 and 2.7). `posterior` integrates over the rest.
Metrics without a floor use E = 0; metrics that reach zero use the identity, scaled, as link.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

Array = npt.NDArray[np.float64]
Noise = tuple[float, float, float]  # of whole rungs, drift, evaluations; relative
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Scales:
    """Prior standard deviations, relative to the value, per unit of log compute where they slope.

    The noise triples are (whole rung, drift within a rung, single evaluation): the centre of a
    log-normal prior and its spread in log units. `floor` is a Beta prior of the floor as a share of
    the lowest value seen, or of the highest floor that a metric can have where that is lower.
    """

    slope: float = 0.1
    slope_change: float = 0.4  # of s(p) along a run, as a share of `slope`
    ratio: float = 0.03
    level_change: float = 0.3  # of a(p) along a run, beside a free mean level
    noise: Noise = (0.0025, 0.0016, 0.0012)
    noise_spread: tuple[float, float, float] = (0.7, 0.7, 0.7)
    floor: tuple[float, float] = (3.0, 2.0)


# A unit of log compute takes 2 to 5 % off the loss of big runs, 8 to 12 % off that of tiny ones.
# Rungs of one recipe differ by 0.1 to 0.3 % in loss beside the trend (published leave-one-out
# errors 0.003-0.004 nats); norms and drop fractions scatter by tenths of themselves. Floors: the
# published 1.5 of 2.47 is 0.61, refits of public dense ladders lie between 0.5 and 0.75 (Hoffmann
# et al. 2022; Besiroglu et al. 2024); 90 % of the prior lies between 0.25 and 0.9. The floor's
# and the whole rungs' were chosen by backtests and synthetic coverage (`benches/ladder_priors.py`).
LOSS = Scales()
OTHER = Scales(
    slope=0.3, slope_change=0.5, ratio=0.1, level_change=1.0,
    noise=(0.05, 0.05, 0.03), noise_spread=(1.2, 1.2, 1.2),
)  # fmt: skip

# Lengths in warped progress, log(p) + 2 p: a run's first tenth changes as much as its last half.
_LEVEL_LENGTH = 0.8
_DRIFT_LENGTH = 0.8
_SLOPE_LENGTH = 1.5
# Relative. No two runs keep their distance exactly, however smooth their curves: without this least
# drift the shapes of smooth curves would pin the floor far beyond what the rungs' levels can say.
_LEAST_DRIFT = 8e-4
_RESOLUTION = 1e-4  # relative, of an evaluation; keeps the covariance regular


@dataclass(frozen=True)
class Points:
    """Where values stand or are wanted: index of the rung int64[n] and progress f64[n]."""

    rung: Ints
    progress: Array

    def take(self, mask: npt.NDArray[np.bool_]) -> "Points":
        return Points(self.rung[mask], self.progress[mask])

    def join(self, other: "Points") -> "Points":
        return Points(
            np.concatenate([self.rung, other.rung]), np.concatenate([self.progress, other.progress])
        )

    def __len__(self) -> int:
        return len(self.rung)


@dataclass(frozen=True)
class Link:
    """log(L - floor), or L / unit where values reach zero."""

    floor: float
    unit: float | None = None

    def forward(self, value: Array) -> Array:
        if self.unit is not None:
            return np.asarray(value / self.unit)
        return np.asarray(np.log(np.maximum(value - self.floor, 1e-300)))

    def inverse(self, linked: Array) -> Array:
        if self.unit is not None:
            return np.asarray(linked * self.unit)
        return np.asarray(self.floor + np.exp(linked))

    def weight(self, value: Array) -> Array:
        """dlink/dlog(value); 1 for the identity, whose noise is relative to `unit`."""
        if self.unit is not None:
            return np.ones_like(value)
        return np.asarray(value / (value - self.floor))


@dataclass(frozen=True)
class Conditional:
    """The result for one floor, measure and set of noise scales.

    `log_evidence` includes the change of variables to values; `mean` and `deviation` [m] are in
    the link's units, evaluation noise included.
    """

    log_evidence: float
    mean: Array
    deviation: Array


@dataclass(frozen=True)
class Linear:
    """A Gaussian over n observed and m wanted points but for its noise.

    `covariance`, `same` and `drift` are [n + m, n + m], `weight` [n + m], `residual` [n] and
    `prior` [m].
    """

    covariance: Array
    weight: Array
    same: Array
    drift: Array
    residual: Array
    prior: Array
    jacobian: float

    def evidence(self, noise: Noise) -> float:
        count = len(self.residual)
        factor = np.asarray(np.linalg.cholesky(self._covariance(noise, count)), np.float64)
        whitened = _solve(factor, self.residual)
        return float(self.jacobian - 0.5 * whitened @ whitened - np.log(np.diag(factor)).sum())

    def condition(self, noise: Noise) -> Conditional:
        count = len(self.residual)
        covariance = self._covariance(noise, len(self.weight))
        factor = np.asarray(np.linalg.cholesky(covariance[:count, :count]), np.float64)
        solved = _solve(factor, np.column_stack([self.residual, covariance[:count, count:]]))
        whitened, cross = solved[:, 0], solved[:, 1:]
        variance = np.diag(covariance)[count:] - (cross**2).sum(axis=0)
        return Conditional(
            float(self.jacobian - 0.5 * whitened @ whitened - np.log(np.diag(factor)).sum()),
            self.prior + cross.T @ whitened,
            np.sqrt(np.maximum(variance, 1e-18)),
        )

    def _covariance(self, noise: Noise, count: int) -> Array:
        rung, drift, evaluation = noise
        part = np.s_[:count, :count]
        scaled = rung**2 * self.same[part] + (drift**2 + _LEAST_DRIFT**2) * self.drift[part]
        scaled.flat[:: count + 1] += evaluation**2 + _RESOLUTION**2
        weight = self.weight[:count]
        return np.asarray(self.covariance[part] + (weight[:, None] * weight) * scaled)


class JointModel:
    """The process over the observed points followed by the wanted ones.

    Args:
      observed, values: the evaluations [n].
      wanted: the points to forecast [m]; of observed rungs or of new ones.
      ratio: log tokens per parameter of every rung.
      scales: prior scales of the metric's kind.
    """

    def __init__(
        self, observed: Points, values: Array, wanted: Points, ratio: Array, scales: Scales
    ) -> None:
        points = observed.join(wanted)
        self.scales = scales
        self._values = values
        self._count = len(observed)
        self._rung = points.rung
        self._seen = np.unique(observed.rung)
        self._warped = np.log(points.progress) + 2 * points.progress
        distance = self._warped[:, None] - self._warped[None, :]
        self._same = (points.rung[:, None] == points.rung[None, :]).astype(np.float64)
        self._drift = self._same * _smooth(distance, _DRIFT_LENGTH)
        self._slope = 1 + scales.slope_change**2 * _smooth(distance, _SLOPE_LENGTH)
        self._level = 1 + scales.level_change**2 * _smooth(distance, _LEVEL_LENGTH)
        z = (ratio - ratio[self._seen].mean())[points.rung]
        self._level = self._level + scales.ratio**2 * np.outer(z, z)

    def under(self, link: Link, compute: Array) -> "Linear":
        """The linear model for one floor and one measure, log compute of every rung."""
        count = self._count
        x = (compute - compute[self._seen].mean())[self._rung]
        level, trend = self._levels(link, x)
        weight = link.weight(level)
        covariance = (weight[:, None] * weight) * (
            self._level + self.scales.slope**2 * (x[:, None] * x) * self._slope
        )
        prior = link.forward(level)
        # Densities are compared between floors, so they have to be those of the values.
        jacobian = (
            0.0
            if link.unit is not None
            else float(np.log(link.weight(self._values) / self._values).sum())
        )
        return Linear(
            covariance=covariance,
            weight=link.weight(trend),
            same=self._same,
            drift=self._drift,
            residual=link.forward(self._values) - prior[:count],
            prior=prior[count:],
            jacobian=jacobian,
        )

    def _levels(self, link: Link, x: Array) -> tuple[Array, Array]:
        """Values of a mean rung at each point, and rough values at each point (observed as seen).

        They set where the link is linearized; the process corrects them.
        """
        count = self._count
        raw = Link(0.0, link.unit)
        columns = np.stack([np.ones_like(x), self._warped, self._warped**2, x], axis=1)
        fit = np.linalg.lstsq(columns[:count], raw.forward(self._values), rcond=None)[0]
        level = raw.inverse(columns[:, :3] @ fit[:3])
        if link.unit is not None:
            return level, level
        # A mean rung below the floor cannot be linearized; a hair above the floor is far enough.
        level = np.maximum(level, link.floor + 0.02 * np.abs(level))
        slope = fit[3] * float(np.mean(link.weight(level)))
        rough = link.floor + (level - link.floor) * np.exp(np.clip(slope * x, -30, 30))
        rough[:count] = self._values
        return level, rough


def _smooth(distance: Array, length: float) -> Array:
    return np.asarray(np.exp(-0.5 * (distance / length) ** 2))


def _solve(factor: Array, sides: Array) -> Array:
    return np.asarray(solve_triangular(factor, sides, lower=True, check_finite=False))
