"""Fits and forecasts as the JSON objects that `--json` prints and registrations keep."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from marin.ladder.backtest import (
    CHOOSING,
    LARGEST,
    LATER_HALF,
    Backtest,
    backtests,
    summarize,
)
from marin.ladder.check import floor_sensitivity, off_trend
from marin.ladder.forecast import Band, Model, Target, check_floor, forecast, observations
from marin.ladder.grid import Array, Ladder, Rung
from marin.ladder.law import fit_law, fit_parts

DIGITS = 6  # more would differ between linear algebra libraries


def fit_answer(ladder: Ladder, model: Model) -> dict[str, Any]:
    """The laws, each rung's place beside them, and the backtests.

    Raises:
      MarinError: the floor is not below every value.
    """
    check_floor(observations(ladder)[1], model.floor, ladder)
    law = fit_law(ladder, floor=model.floor, burn_in=model.burn_in)
    parts = fit_parts(ladder)
    tests = backtests(ladder, model)
    residuals = dict(zip([rung.name for rung in ladder.fitted], law.residual, strict=True))
    return {
        "source": ladder.source,
        "metric": ladder.metric,
        "floor": number(law.floor),
        "floor_given": model.floor is not None,
        "exponent": number(law.exponent[-1]),
        "log_scale": number(law.log_scale[-1]),
        "progress": numbers(law.progress),
        "exponents": numbers(law.exponent),
        "parameters_tokens": None
        if parts is None
        else {
            "floor": number(parts.floor),
            "parameters": number(parts.parameters),
            "tokens": number(parts.tokens),
            "error": number(parts.error),
        },
        "rungs": [
            {**rung_answer(rung, ladder.metric), "residual": numbers(residuals[rung.name])}
            for rung in ladder.fitted
        ],
        "off_trend": off_trend_answer(ladder, model),
        **backtest_answer(tests),
    }


def forecast_answer(ladder: Ladder, target: Target, model: Model) -> dict[str, Any]:
    """The target's trajectory and end, what it leans on, and how such forecasts have fared."""
    result = forecast(ladder, target, model)
    band = result.band
    floor, low, high = result.floor
    return {
        "source": ladder.source,
        "metric": ladder.metric,
        "target": {
            "name": target.name,
            "train_flops": target.train_flops,
            "tokens": target.tokens,
            "active_params": target.active_params,
            "extrapolation": number(
                target.train_flops / max(rung.train_flops for rung in ladder.fitted)
            ),
        },
        "progress": numbers(band.progress),
        "loss": numbers(band.middle),
        "low": numbers(band.low),
        "high": numbers(band.high),
        "baseline": numbers(result.baseline),
        "final": {
            "progress": number(band.progress[-1]),
            "loss": number(band.middle[-1]),
            "low": number(band.low[-1]),
            "high": number(band.high[-1]),
            "baseline": number(result.baseline[-1]),
        },
        "floor": {"mean": number(floor), "low": number(low), "high": number(high)},
        "noise": dict(zip(("rung", "drift", "evaluation"), numbers(result.noise), strict=True)),
        "model": {
            "measure": model.measure,
            "burn_in": model.burn_in,
            "exponent_varies": model.exponent_varies,
            "floor": model.floor,
        },
        "rungs": [rung_answer(rung, ladder.metric) for rung in ladder.fitted],
        "extrapolated_rungs": {
            name: band_answer(extended) for name, extended in result.extended.items()
        },
        "sensitivity": [
            {
                "floor": number(entry.floor),
                "loss": number(entry.middle),
                "low": number(entry.low),
                "high": number(entry.high),
                "backtest_error": number(entry.backtest_error),
            }
            for entry in floor_sensitivity(ladder, target, model)
        ],
        "off_trend": off_trend_answer(ladder, model),
        **backtest_answer(backtests(ladder, model)),
    }


def backtest_answer(tests: Sequence[Backtest]) -> dict[str, Any]:
    summaries = {}
    for name, protocols in (("all", CHOOSING), (LARGEST, (LARGEST,)), (LATER_HALF, (LATER_HALF,))):
        summary = summarize(list(tests), protocols)
        if summary is not None:
            summaries[name] = {
                "points": summary.points,
                "error": number(summary.error),
                "baseline_error": number(summary.baseline_error),
                "covered": number(summary.covered),
            }
    return {
        "backtests": [
            {
                "protocol": test.protocol,
                "rung": test.rung,
                "error": number(test.error),
                "baseline_error": number(test.baseline_error),
                "covered": number(test.covered),
                "progress": numbers(test.progress),
                "actual": numbers(test.actual),
                "forecast": numbers(test.forecast),
                "low": numbers(test.low),
                "high": numbers(test.high),
                "baseline": numbers(test.baseline),
            }
            for test in tests
        ],
        "backtest_summary": summaries,
    }


def rung_answer(rung: Rung, metric: str) -> dict[str, Any]:
    progress, values = rung.curve(metric)
    return {
        "name": rung.name,
        "train_flops": rung.train_flops,
        "tokens": rung.tokens,
        "active_params": rung.active_params,
        "evaluations": len(rung.metrics[metric][0]),
        "progress": number(progress[-1]),
        "last": number(values[-1]),
    }


def band_answer(band: Band) -> dict[str, Any]:
    return {
        "progress": numbers(band.progress),
        "loss": numbers(band.middle),
        "low": numbers(band.low),
        "high": numbers(band.high),
    }


def off_trend_answer(ladder: Ladder, model: Model) -> list[dict[str, Any]]:
    return [{"rung": name, "deviations": number(by)} for name, by in off_trend(ladder, model)]


def number(value: float | None) -> float | None:
    """Rounded; None for what is not a finite number, which JSON has no word for."""
    if value is None or not np.isfinite(value):
        return None
    return round(float(value), DIGITS)


def figure(value: float | None, form: str = ".4f") -> str:
    """A number as text; a dash where there is none."""
    return "-" if value is None else format(value, form)


def numbers(values: Array | Sequence[float]) -> list[float | None]:
    return [number(float(value)) for value in values]
