"""A run against its registration: on track or not, by the rule that was stated beforehand."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marin.ladder.answer import number
from marin.ladder.grid import Rung
from marin.ladder.published import interpolate

_SIZE_TOLERANCE = 0.02  # relative; published figures are rounded
# What makes a run another experiment than the one registered; other differences are only named.
_VOIDING = (
    "recipe", "seq_len", "mixture", "data", "tokenizer", "transport", "capacity", "vocab",
    "evaluation_tokens", "evaluation_seq_len",
)  # fmt: skip
# What is held against the most that any rung showed at the same progress -> how far beyond twice of
# it is too far, and whether that voids. Dropped is a share of assignments.
JUDGED = {"drop_fraction": (0.02, True), "grad_norm": (0.0, False)}


def watch(rung: Rung, registration: Mapping[str, Any]) -> dict[str, Any]:
    """Judges every evaluation of a run that has some of the registered metric.

    `verdict` is "on track", "off track" or "void"; `evaluations` says for each its progress, value,
    band and side ("inside", "above", "below", "burn-in", or "not forecast" before the registered
    trajectory begins and after it ends, where nothing is judged). `error` is relative to the
    forecast; None where the band reaches zero, and `difference` is within the tolerance or not.
    """
    metric, rule, forecast = (registration[key] for key in ("metric", "rule", "forecast"))
    progress, values = rung.curve(metric)
    registered = np.asarray(forecast["progress"], np.float64)
    low, middle, high = (
        interpolate((registered, np.asarray(forecast[key], np.float64)), progress)
        for key in ("low", "loss", "high")
    )
    sides = [
        "not forecast"
        if np.isnan(bottom)
        else "burn-in"
        if at <= rule["burn_in"] + 1e-3
        else _side(value, bottom, top)
        for at, value, bottom, top in zip(progress, values, low, high, strict=True)
    ]
    since = _persistent(sides, int(rule["persistence"]))
    differences = _differences(rung, registration)
    void = [entry["what"] for entry in differences if entry["voids"]]
    verdict = "void" if void else "on track" if since is None else "off track"
    finished = progress[-1] >= 1 - 1e-3
    difference = float(values[-1] - middle[-1])
    scale = 0.0 if reaches_zero(low[-1], high[-1]) else abs(float(middle[-1]))
    error = difference / scale if scale else None
    judged = finished and np.isfinite(difference)
    return {
        "run": rung.name,
        "metric": metric,
        "verdict": verdict,
        "since": None if since is None else number(progress[since]),
        "progress": number(progress[-1]),
        "value": number(values[-1]),
        "forecast": number(middle[-1]),
        "error": number(error),
        "difference": number(difference),
        "finished": bool(finished),
        "within_tolerance": abs(difference if error is None else error) <= registration["tolerance"]
        if judged
        else None,
        "differences": differences,
        "evaluations": [
            {
                "progress": number(at),
                "value": number(value),
                "forecast": number(centre),
                "low": number(bottom),
                "high": number(top),
                "side": side,
            }
            for at, value, centre, bottom, top, side in zip(
                progress, values, middle, low, high, sides, strict=True
            )
        ],
    }


def reaches_zero(low: float, high: float) -> bool:
    """Whether zero lies in an interval: nothing is told relative to a forecast in it, and the
    tolerance is absolute."""
    return low <= 0 <= high


def _side(value: float, low: float, high: float) -> str:
    return "above" if value > high else "below" if value < low else "inside"


def _persistent(sides: Sequence[str], persistence: int) -> int | None:
    """Where the first stretch of `persistence` evaluations on one side outside begins."""
    length = 0
    for index, side in enumerate(sides):
        outside = side in ("above", "below")
        length = (length + 1 if index and side == sides[index - 1] else 1) if outside else 0
        if length == persistence:
            return index - persistence + 1
    return None


def _differences(rung: Rung, registration: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What differs from the registered run: sizes, recipe, and the newest 5 % window's drops and
    gradient norm from those of the rungs."""
    target = registration["forecast"]["target"]
    found = []
    for key in ("train_flops", "tokens", "active_params"):
        registered, run = float(target[key]), float(getattr(rung, key))
        if abs(run / registered - 1) > _SIZE_TOLERANCE:
            found.append(_difference(key, registered, run, voids=True))
    for key, registered in registration["recipe"].items():
        if key in rung.recipe and rung.recipe[key] != registered:
            found.append(_difference(key, registered, rung.recipe[key], voids=key in _VOIDING))
    for name, (excess, voids) in JUDGED.items():
        if name in registration["normal"] and name in rung.metrics:
            progress, value = list(rung.windows(name).items())[-1]
            usual = _usual(registration["normal"][name], progress)
            if value > 2 * usual + excess:
                found.append(_difference(name, usual, value, voids=voids))
    return found


def _usual(normal: Mapping[str, Sequence[float]] | float, progress: float) -> float:
    """The most that the rungs showed at a progress; one number for all in older registrations."""
    if isinstance(normal, Mapping):
        return float(np.interp(progress, normal["progress"], normal["highest"]))
    return normal


def _difference(what: str, registered: object, run: object, *, voids: bool) -> dict[str, Any]:
    return {"what": what, "registered": registered, "run": run, "voids": voids}
