"""The forecast on ladders whose truth is known, and on the published one."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from marin.errors import MarinError
from marin.ladder import Ladder, Model, Rung, build_ladder, find_target, forecast
from marin.ladder.check import off_trend
from marin.ladder.posterior import Posterior


@pytest.mark.parametrize(
    "noise",
    [{"rung_noise": 0.003}, {"noise": 0.003}, {"rung_noise": 0.0021, "noise": 0.0021}],
    ids=["whole rungs", "evaluations", "both"],
)
def test_truth_lies_in_the_interval_at_300_times_the_compute(
    truth: Callable[..., object], noise: dict[str, float]
) -> None:
    draws = 28
    hits = 0
    for seed in range(draws):
        ladder, target, value = truth(points=5, **noise).ladder(seed)
        band = forecast(ladder, target, Model()).band
        hits += bool(band.low[-1] <= value <= band.high[-1])
    assert hits >= round(0.85 * draws)


@pytest.mark.parametrize("floor", [0.6, 1.2, 1.8, 2.0])
def test_floors_far_from_the_middle_of_the_prior_are_allowed_for(
    truth: Callable[..., object], floor: float
) -> None:
    draws = 12
    hits = 0
    ladders = truth(points=5, rung_noise=0.003, floor=floor, ends=2.6)
    for seed in range(draws):
        ladder, target, value = ladders.ladder(seed)
        band = forecast(ladder, target, Model()).band
        hits += bool(band.low[-1] <= value <= band.high[-1])
    assert hits >= round(0.85 * draws)


def test_without_noise_the_truth_is_in_a_narrow_interval(truth: Callable[..., object]) -> None:
    ladder, target, value = truth(rungs=6, span=1e4, beyond=10).ladder()
    band = forecast(ladder, target, Model()).band
    assert band.low[-1] <= value <= band.high[-1]
    assert band.high[-1] - band.low[-1] < 0.03 * value


def test_published_final_forecast(published: Ladder) -> None:
    result = forecast(published, find_target(published, "d6144"), Model())
    assert 2.00 <= result.baseline[-1] <= 2.08
    assert result.band.low[-1] < 2.04 < result.band.high[-1]
    assert np.all(np.diff(result.band.middle) < 0)
    assert np.all((result.band.low < result.band.middle) & (result.band.middle < result.band.high))
    assert list(result.extended) == ["d2048"]
    np.testing.assert_allclose(result.extended["d2048"].progress, [0.85, 0.9, 0.95, 1.0])


def test_the_order_of_rungs_in_the_grid_does_not_matter(published: Ladder) -> None:
    shuffled = build_ladder(published.rungs[::-1], None, "shuffled")
    one = forecast(published, find_target(published, "d6144"), Model(floor=1.5))
    other = forecast(shuffled, find_target(shuffled, "d6144"), Model(floor=1.5))
    np.testing.assert_array_equal(one.band.middle, other.band.middle)


def test_unit_of_compute_does_not_matter(truth: Callable[..., object]) -> None:
    ladder, target, _ = truth(noise=0.003).ladder()
    scaled = replace(
        ladder, rungs=tuple(replace(r, train_flops=r.train_flops * 1e-15) for r in ladder.rungs)
    )
    one = forecast(ladder, target, Model())
    other = forecast(scaled, replace(target, train_flops=target.train_flops * 1e-15), Model())
    np.testing.assert_allclose(one.band.middle, other.band.middle, rtol=1e-9)


def test_a_share_that_falls_to_zero_is_forecast_between_zero_and_its_band(
    truth: Callable[..., object],
) -> None:
    ladder, target, _ = truth().ladder()
    drops = [0.04, 0.03, 0.02, 0.0]
    rungs = [
        replace(rung, metrics={"drop_fraction": ((99.0, 9_999.0), (0.0, drop))})
        for rung, drop in zip(ladder.rungs, drops, strict=True)
    ]
    band = forecast(build_ladder(rungs, None, "drops"), target, Model()).band
    assert np.all((band.low >= 0) & (band.low <= band.middle) & (band.middle <= band.high))
    assert band.high[-1] < 0.02


def test_a_growing_metric_is_extrapolated_upwards(truth: Callable[..., object]) -> None:
    ladder, target, _ = truth().ladder()
    rungs = [
        replace(rung, metrics={"grad_norm": ((4_999.0, 9_999.0), (0.5 * 1.2**i, 0.4 * 1.2**i))})
        for i, rung in enumerate(ladder.rungs)
    ]
    band = forecast(build_ladder(rungs, None, "norms"), target, Model()).band
    assert band.middle[-1] > 0.4 * 1.2**3
    assert band.low[-1] < 0.4 * 1.2 ** (3 + 3 * np.log(300) / np.log(170)) < band.high[-1]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("d2048", "has evaluations"),
        ("1e21", "inside the fitted range"),
        ("9.2e21", "inside the fitted range"),
        ("d9999", "expected a rung without evaluations (d6144)"),
        ("1e25,1e13", "FLOPS,TOKENS,PARAMS"),
        ("-1e25", "positive"),
        ("nan", "positive"),
        ("inf", "positive"),
    ],
)
def test_targets_that_are_no_extrapolation_are_refused(
    published: Ladder, target: str, says: str
) -> None:
    with pytest.raises(MarinError, match=None) as refusal:
        find_target(published, target)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_bare_flops_take_tokens_and_parameters_from_the_largest_rung(published: Ladder) -> None:
    target = find_target(published, "2.7e24")
    assert target.tokens == pytest.approx(18e12, rel=0.35)
    assert target.active_params == pytest.approx(22.8e9, rel=0.35)


@pytest.mark.parametrize("floor", [-0.1, 2.48, 3.0])
def test_a_floor_outside_of_its_range_is_refused(published: Ladder, floor: float) -> None:
    with pytest.raises(MarinError, match="--floor"):
        forecast(published, find_target(published, "d6144"), Model(floor=floor))


@pytest.mark.parametrize("at", [(0.1, 0.3, 0.6, 0.8), (0.5, 0.52, 0.54, 0.2)])
def test_rungs_that_were_never_at_the_same_progress_are_refused(
    published: Ladder, at: tuple[float, ...]
) -> None:
    rungs = [_only(rung, p) for rung, p in zip(published.fitted, at, strict=True)]
    ladder = build_ladder([*rungs, published.rungs[-1]], None, "grid")
    with pytest.raises(MarinError, match="no progress point has 3 rungs") as refusal:
        forecast(ladder, find_target(ladder, "d6144"), Model())
    assert "\n" not in str(refusal.value)
    assert np.all(np.isfinite([deviation for _, deviation in off_trend(ladder, Model())]))


def _only(rung: Rung, progress: float) -> Rung:
    """The rung with a single evaluation."""
    [(metric, (steps, values))] = rung.metrics.items()
    step = round(progress * rung.steps) - 1
    value = float(np.interp(step, steps, values))
    return replace(rung, metrics={metric: ((float(step),), (value,))})


def test_quantiles_split_a_posterior_over_many_orders_of_magnitude() -> None:
    floors, deviations = np.array([0.5, 1.5, 2.4]), np.array([[3.0, 0.01], [8.0, 0.02], [1.0, 2.0]])
    means, weights = np.array([[0.0, 0.3], [-5.0, -2.0], [2.0, 40.0]]), np.array([0.3, 0.5, 0.2])
    posterior = Posterior(floors, None, weights, means, deviations, (0.0, 0.0, 0.0))
    for probability in (0.05, 0.5, 0.95):
        above = posterior.quantile(probability) - floors[:, None]
        linked = np.log(np.maximum(above, 1e-300))
        np.testing.assert_allclose(
            weights @ norm.cdf((linked - means) / deviations), probability, atol=1e-9
        )


def test_many_evaluations_are_averaged_over_windows() -> None:
    steps = tuple(float(step) for step in range(1000))
    rung = Rung("r", 1.0, 1.0, 1.0, 1000, {"loss": (steps, steps)})
    progress, values = rung.curve("loss")
    assert len(progress) == 20
    np.testing.assert_allclose(values, progress * 1000 - 1)
