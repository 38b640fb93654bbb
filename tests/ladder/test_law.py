"""Least squares recovers the laws that made the data."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.ladder import Rung, build_ladder, fit_law, fit_parts
from marin.ladder.published import baseline, power_law


@settings(deadline=None, max_examples=8)
@given(
    floor=st.floats(0.0, 2.5),
    exponent=st.floats(0.04, 0.5),
    rungs=st.integers(3, 7),
    span=st.floats(30, 1e5),
)
def test_noise_free_exponents_and_floor_are_recovered(
    truth: Callable[..., object], floor: float, exponent: float, rungs: int, span: float
) -> None:
    ladder, _, _ = truth(floor=floor, exponent=exponent, rungs=rungs, span=span, points=4).ladder()
    law = fit_law(ladder, floor=None)
    np.testing.assert_allclose(law.exponent, exponent, atol=1e-3)
    assert law.floor == pytest.approx(floor, abs=0.02)


def test_a_given_floor_is_kept(truth: Callable[..., object]) -> None:
    ladder, _, _ = truth(floor=1.2).ladder()
    assert fit_law(ladder, floor=1.0).floor == 1.0


@settings(deadline=None, max_examples=4)
@given(floor=st.floats(1.0, 2.0), by_params=st.floats(0.2, 0.6), by_tokens=st.floats(0.2, 0.6))
def test_parameters_and_tokens_are_told_apart(
    floor: float, by_params: float, by_tokens: float
) -> None:
    rungs = []
    for index, params in enumerate(np.geomspace(1e7, 1e9, 4)):
        for ratio in (20, 100, 500):
            tokens = params * ratio
            value = floor + (1e7 / params) ** by_params + (1e9 / tokens) ** by_tokens
            rungs.append(
                Rung(f"{index}-{ratio}", params, tokens, 6 * params * tokens, 10,
                     {"loss": ((9.0,), (float(value),))})
            )  # fmt: skip
    law = fit_parts(build_ladder(rungs, None, "parts"))
    assert law is not None
    assert law.parameters == pytest.approx(by_params, abs=1e-3)
    assert law.tokens == pytest.approx(by_tokens, abs=1e-3)
    assert law.floor == pytest.approx(floor, abs=1e-3)


def test_one_ratio_cannot_tell_parameters_from_tokens(truth: Callable[..., object]) -> None:
    assert fit_parts(truth(rungs=6).ladder()[0]) is None


def test_baseline_extends_a_rung_that_ended_early_at_its_own_offset() -> None:
    compute = np.array([1.0, 10.0, 100.0])
    progress = np.linspace(0.1, 1, 10)
    values = [1.5 + (1.2 - 0.2 * progress) * c**-0.1 for c in compute]
    whole = [(progress, value) for value in values]
    early = [*whole[:2], (progress[:6], values[2][:6])]
    np.testing.assert_allclose(
        baseline(early, compute, 1000.0, progress), baseline(whole, compute, 1000.0, progress),
        rtol=1e-12,
    )  # fmt: skip


def test_power_law_needs_two_points() -> None:
    assert np.isnan(power_law(np.array([1.0, 2.0]), np.array([2.0, np.nan]), 1.5)[1])
