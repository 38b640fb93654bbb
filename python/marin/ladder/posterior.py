"""Integrates the joint model over floor, measure of compute and rung noise, on a fixed grid.

The floor has a Beta prior as a share of the lowest value seen or of the highest floor that a metric
can have; the noise of whole rungs, which few rungs can hardly tell, a log-normal one that is
integrated over; drift and evaluation noise, which tens of evaluations do tell, stand at their mode.
Everything is deterministic: no sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from scipy.optimize import minimize
from scipy.special import ndtr
from scipy.stats import beta

from marin.ladder.joint import Array, JointModel, Link, Noise, Points, Scales

Measure = Literal["flops", "parameters_tokens", "both"]

_FLOOR_RANGE = (0.02, 0.98)
_COARSE, _FINE = 9, 17
_NEGLIGIBLE = 1e-4  # of the best floor's posterior
_REACH = 9.0  # standard deviations that a quantile is searched in
_BISECTIONS = 50
_LARGEST_LOG = 50.0
_LEAST_ABOVE = 1e-300  # of a value above a floor
_RUNG_NODES = np.array([-2.0, -1.25, -0.5, 0.25, 1.0, 1.75, 2.5])  # in spreads of the prior
_MEASURE_SHARES: dict[Measure, tuple[float, ...]] = {
    "flops": (1.0,),
    "parameters_tokens": (0.0,),
    "both": (0.0, 0.5, 1.0),
}


@dataclass(frozen=True)
class Sizes:
    """Natural logs per rung: total FLOPs, parameters times tokens, tokens per parameter."""

    flops: Array
    product: Array
    ratio: Array

    def measures(self, measure: Measure) -> list[Array]:
        return [
            share * self.flops + (1 - share) * self.product for share in _MEASURE_SHARES[measure]
        ]


@dataclass(frozen=True)
class Posterior:
    """A mixture of [k] conditionals over [m] points, with weights [k] that sum to 1.

    `means` and `deviations` [k, m] are in units of the link: log(value - floors), or value / unit.
    """

    floors: Array
    unit: float | None
    weights: Array
    means: Array
    deviations: Array
    noise: Noise
    least: float = -np.inf
    """What no value lies below; quantiles end there."""

    @property
    def floor(self) -> tuple[float, float, float]:
        """Mean and 90 % interval of the floor."""
        order = np.argsort(self.floors, kind="stable")
        mass = np.cumsum(self.weights[order])
        low, high = (
            self.floors[order][min(int(np.searchsorted(mass, q)), len(mass) - 1)]
            for q in (0.05, 0.95)
        )
        return float(self.weights @ self.floors), float(low), float(high)

    def quantile(self, probability: float) -> Array:
        """The value [m] below which `probability` lies at each point, by bisection of the CDF.

        Values above a floor are bisected in their log above the lowest one: far from the rungs they
        may span many orders of magnitude.
        """
        kept = self.weights > _NEGLIGIBLE**2 * self.weights.max()
        weights = self.weights[kept] / self.weights[kept].sum()
        means, deviations = self.means[kept], self.deviations[kept]
        floors = self.floors[kept, None]
        lowest = float(floors.min())
        low, high = (
            self._relinked(means + side * _REACH * deviations, floors - lowest)
            for side in (-1.0, 1.0)
        )
        low, high = low.min(axis=0), high.max(axis=0)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            linked = self._relinked(middle[None, :], lowest - floors)
            below = weights @ ndtr((linked - means) / deviations) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        value = Link(lowest, self.unit).inverse(0.5 * (low + high))
        return np.asarray(np.maximum(value, self.least))

    def _relinked(self, linked: Array, rise: Array) -> Array:
        """The same values' links above floors that lie lower by `rise`."""
        if self.unit is not None:
            return linked
        above = np.exp(np.minimum(linked, _LARGEST_LOG)) + rise
        return np.asarray(np.log(np.maximum(above, _LEAST_ABOVE)))


def infer(
    observed: Points,
    values: Array,
    wanted: Points,
    sizes: Sizes,
    scales: Scales,
    *,
    measure: Measure,
    floor: float | None,
    highest_floor: float,
) -> Posterior:
    """The posterior at `wanted` from evaluations at `observed`.

    `floor` fixes the floor; otherwise it is integrated over up to `highest_floor`, 0 for a metric
    that has none.
    """
    model = JointModel(observed, values, wanted, sizes.ratio, scales)
    lowest = float(values.min())
    if lowest <= 0:
        link = Link(0.0, float(np.abs(values).mean()) or 1.0)
        posterior = _integrate(model, [(link, 0.0)], sizes, measure)
        return posterior if lowest < 0 else replace(posterior, least=0.0)
    if floor is not None or not highest_floor:
        return _integrate(model, [(Link(floor or 0.0), 0.0)], sizes, measure)
    highest = min(lowest, highest_floor)
    shares = np.linspace(*_FLOOR_RANGE, _COARSE)
    posterior = _integrate(model, _priors(shares, highest, scales), sizes, measure)
    mass = posterior.weights.reshape(_COARSE, -1).sum(axis=1)
    kept = np.flatnonzero(mass > _NEGLIGIBLE * mass.max())
    low, high = shares[max(kept[0] - 1, 0)], shares[min(kept[-1] + 1, _COARSE - 1)]
    # A second, finer look where the first found the mass; twice more where it is a needle.
    for _ in range(3):
        shares = np.linspace(low, high, _FINE)
        posterior = _integrate(model, _priors(shares, highest, scales), sizes, measure)
        mass = posterior.weights.reshape(_FINE, -1).sum(axis=1)
        kept = np.flatnonzero(mass > _NEGLIGIBLE * mass.max())
        if len(kept) >= _FINE // 2:
            break
        low, high = shares[max(kept[0] - 1, 0)], shares[min(kept[-1] + 1, _FINE - 1)]
    return posterior


def _priors(shares: Array, highest: float, scales: Scales) -> list[tuple[Link, float]]:
    densities = beta.logpdf(shares, *scales.floor)
    return [(Link(float(s * highest)), float(d)) for s, d in zip(shares, densities, strict=True)]


def _integrate(
    model: JointModel, floors: Sequence[tuple[Link, float]], sizes: Sizes, measure: Measure
) -> Posterior:
    """The mixture over floors (outermost, in order), measures and rung noise."""
    measures = sizes.measures(measure)
    # The noise within rungs does not depend on the floor but through curvature: its mode at the
    # middle of the prior stands for all.
    middle = min(floors, key=lambda entry: -entry[1])[0]
    _, drift, evaluation = _noise_mode(model, middle, np.mean(measures, axis=0))
    centre, spread = model.scales.noise[0], model.scales.noise_spread[0]
    nodes, results = [], []
    for (link, log_prior), compute in product(floors, measures):
        linear = model.under(link, compute)
        for offset in _RUNG_NODES:
            noise = (centre * float(np.exp(spread * offset)), drift, evaluation)
            result = linear.condition(noise)
            nodes.append((link, result.log_evidence + log_prior - 0.5 * offset**2, noise[0]))
            results.append(result)
    logs = np.array([node[1] for node in nodes])
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    return Posterior(
        floors=np.array([node[0].floor for node in nodes]),
        unit=floors[0][0].unit,
        weights=weights,
        means=np.array([result.mean for result in results]),
        deviations=np.array([result.deviation for result in results]),
        noise=(float(weights @ np.array([node[2] for node in nodes])), drift, evaluation),
    )


def _noise_mode(model: JointModel, link: Link, compute: Array) -> Noise:
    centre, spread = np.log(model.scales.noise), np.array(model.scales.noise_spread)
    linear = model.under(link, compute)

    def cost(logs: Array) -> float:
        rung, drift, evaluation = np.exp(logs)
        prior = 0.5 * float(np.sum(((logs - centre) / spread) ** 2))
        return prior - linear.evidence((rung, drift, evaluation))

    found = minimize(
        cost, centre, method="Nelder-Mead", options={"maxfev": 90, "xatol": 0.05, "fatol": 0.02}
    )
    rung, drift, evaluation = np.exp(found.x)
    return float(rung), float(drift), float(evaluation)
