"""Pre-registration: what is forecast, from what, and how it will be judged, before the run.

One Markdown file for people, with one JSON block for `watch`. It is written once and never over.
"""

import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import marin
from marin._native import xxh3_file
from marin.engine import atomic_file
from marin.errors import MALFORMED, MarinError
from marin.ladder.answer import figure, forecast_answer
from marin.ladder.forecast import Model, Target
from marin.ladder.grid import RECIPE_KEYS, Ladder
from marin.ladder.wandb_files import is_wandb
from marin.ladder.watch import JUDGED, reaches_zero
from marin.validation import is_finite

FORMAT = "marin-ladder-registration-1"
PERSISTENCE = 3  # evaluations in a row outside the band, on one side
_FENCE = "```json"
_OPENING = re.compile(rf"^{_FENCE}$", re.MULTILINE)


def register(
    ladder: Ladder,
    target: Target,
    model: Model,
    sources: Sequence[Path],
    out: Path,
    *,
    tolerance: float,
    date: datetime | None = None,
) -> dict[str, Any]:
    """Writes the registration of a forecast to `out` and returns its JSON block, which names the
    files that it was made from as seen from `out`'s folder, so that they can move together.

    Args:
      tolerance: relative; the hypothesis holds if the outcome differs by no more.
      date: of the registration; now if not given.

    Raises:
      MarinError: `out` exists or its folder does not, or the tolerance is not in (0, 1).
    """
    if out.exists():
        raise MarinError(
            f"{out}: exists, and a registration is never overwritten; name another file"
        )
    if not out.parent.is_dir():
        raise MarinError(f"{out}: its folder does not exist; create it or name another file")
    if not 0 < tolerance < 1:
        raise MarinError(
            f"--tolerance {tolerance:g}: expected a share between 0 and 1, such as 0.02"
        )
    forecast = forecast_answer(ladder, target, model)
    block = {
        "format": FORMAT,
        "date": (date or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "version": marin.__version__,
        "data": {
            os.path.relpath(file, out.parent): xxh3_file(file)
            for source in sources
            for file in _files(source, ladder)
        },
        "metric": ladder.metric,
        "tolerance": tolerance,
        "rule": {"burn_in": model.burn_in, "persistence": PERSISTENCE},
        "recipe": _recipe(ladder, target),
        "normal": _normal(ladder),
        "forecast": forecast,
    }
    with atomic_file(out) as partial:
        partial.write_text(_markdown(block), encoding="utf-8")
    return block


def read_registration(path: Path) -> dict[str, Any]:
    """The JSON block of a registration.

    Raises:
      MarinError: the file cannot be read or holds no registration.
    """
    try:
        text = path.read_text(encoding="utf-8")
        # The last one: the text before it holds names, which may hold anything.
        block = json.loads(_OPENING.split(text)[1:][-1].split("\n```", 1)[0])
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected a registration") from None
    except (IndexError, ValueError, RecursionError):
        raise MarinError(f"{path}: no JSON block; expected a registration") from None
    if not isinstance(block, dict) or block.get("format") != FORMAT:
        raise MarinError(f"{path}: not a registration of the format {FORMAT}")
    try:
        whole = _is_whole(block)
    except MALFORMED:
        whole = False
    if not whole:
        raise MarinError(f"{path}: not as marin ladder register wrote it; restore the file")
    return block


def _is_whole(block: dict[str, Any]) -> bool:
    """Whether everything is there that a run is held against, and of its kind."""
    forecast, rule = block["forecast"], block["rule"]
    target = forecast["target"]
    curves = [forecast[key] for key in ("progress", "loss", "low", "high")]
    sizes = [target[key] for key in ("train_flops", "tokens", "active_params")]
    numbers = [*sizes, rule["burn_in"], rule["persistence"], block["tolerance"]]
    for values in curves:
        numbers += values
    for usual in block["normal"].values():
        if isinstance(usual, dict):
            if not len(usual["progress"]) == len(usual["highest"]) > 0:
                return False
            numbers += [*usual["progress"], *usual["highest"]]
        else:  # of older registrations
            numbers.append(usual)
    return (
        isinstance(target["name"], str)
        and isinstance(block["metric"], str)
        and isinstance(block["recipe"], dict)
        and all(map(is_finite, numbers))
        and min(sizes) > 0
        and len(curves[0]) > 0
        and len({len(curve) for curve in curves}) == 1
    )


def _files(source: Path, ladder: Ladder) -> list[Path]:
    """What a source consists of: a grid and the exports that it names, or the files of a run."""
    if source.is_file():
        named = [rung.figures["history"] for rung in ladder.rungs if "history" in rung.figures]
        return [source, *(source.parent / str(name) for name in named)]
    if is_wandb(source):
        return sorted(source.rglob("*.wandb"))
    return [source / name for name in ("config.toml", "plan.json", "metrics.jsonl")]


def _recipe(ladder: Ladder, target: Target) -> dict[str, Any]:
    """The recipe of the target if the grid states it, else the one that the rungs share."""
    named = ladder.rung(target.name)
    for rung in ([named] if named is not None else []) + list(ladder.fitted):
        if rung.recipe:
            return {key: rung.recipe[key] for key in RECIPE_KEYS if key in rung.recipe}
    return {}


def _normal(ladder: Ladder) -> dict[str, dict[str, list[float]]]:
    """What any rung showed at most of what should stay small or near its usual size: by metric, the
    ends of the run's 5 % windows and the highest mean of a rung over each."""
    normal = {}
    for name in JUDGED:
        highest: dict[float, float] = {}
        for rung in ladder.fitted:
            for end, mean in (rung.windows(name) if name in rung.metrics else {}).items():
                highest[end] = max(mean, highest.get(end, mean))
        if highest:
            ends = sorted(highest)
            normal[name] = {"progress": ends, "highest": [highest[end] for end in ends]}
    return normal


def _markdown(block: dict[str, Any]) -> str:
    forecast, rule, metric = block["forecast"], block["rule"], block["metric"]
    target, final = forecast["target"], forecast["final"]
    near_zero = reaches_zero(final["low"], final["high"])
    tolerance = f"{block['tolerance']:{'g' if near_zero else '.1%'}}"
    rows = [
        f"| {rung['name']} | {rung['train_flops']:.3g} | {rung['tokens']:.3g} | "
        f"{rung['active_params']:.3g} | {rung['progress']:.0%} | {rung['last']:.4f} |"
        for rung in forecast["rungs"]
    ]
    lines = [
        f"# Forecast of {target['name']}: {metric}",
        "",
        f"Registered {block['date']}, marin {block['version']}, before the run.",
        "",
        f"**Hypothesis.** The rungs' trend holds {target['extrapolation']:.3g} times beyond the "
        "largest of them.",
        "",
        f"**Target.** {target['train_flops']:.3g} FLOPs, {target['tokens']:.3g} tokens, "
        f"{target['active_params']:.3g} active parameters: {metric} {final['loss']:.4f} at "
        f"{final['progress']:.0%} of the run, 90 % interval {final['low']:.4f} to "
        f"{final['high']:.4f} (baseline {figure(final['baseline'])}).",
        "",
        f"**Tolerance.** The forecast holds if the outcome lies within {tolerance} of it.",
        "",
        f"**Rule.** Off track: {rule['persistence']} evaluations in a row on one side of the 90 % "
        f"band, after {rule['burn_in']:.0%} of the run. Another recipe than the registered one, or "
        "drops far beyond the rungs' at the same progress, voids the comparison; means over 5 % of "
        "the run are compared.",
        "",
        "| rung | FLOPs | tokens | active | progress | last |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        _backtest_line(forecast["backtest_summary"].get("all")),
        "",
        "Data:",
        *(f"- `{name}` xxh3 `{checksum}`" for name, checksum in block["data"].items()),
        "",
        _FENCE,
        json.dumps(block, indent=1, sort_keys=True),
        "```",
    ]
    return "\n".join(lines) + "\n"


def _backtest_line(summary: dict[str, Any] | None) -> str:
    if summary is None:
        return "The ladder is too short for backtests."
    return (
        f"Backtests of the same model on this ladder: mean absolute error {summary['error']:.4f} "
        f"over {summary['points']} points (baseline {figure(summary['baseline_error'])}), "
        f"{summary['covered']:.0%} inside the 90 % interval."
    )
