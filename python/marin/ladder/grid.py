"""A ladder of training runs: rungs of one recipe and their evaluations.

A grid file is JSON: `{"rungs": [{"name", "active_params", "tokens", "train_flops", "steps", ...,
"<metric>": [[step, value], ...]}]}`. Every key whose value is a list of pairs is a metric; steps
count from 0, so that the evaluation after the last step `steps - 1` stands at progress 1. A rung
without evaluations is one to forecast. Figures are parameters, tokens and FLOPs of the whole run.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from marin.engine import read_json
from marin.errors import MALFORMED, MarinError
from marin.ladder.history import read_history
from marin.ladder.metric import choose_metric
from marin.validation import is_finite

Array = npt.NDArray[np.float64]
Curve = tuple[tuple[float, ...], tuple[float, ...]]

MINIMUM_RUNGS = 3
# What has to be equal in all rungs, where a grid or a run states it: everything that is not size.
MODEL_RECIPE = (
    "experts", "top_k", "vocab", "transport", "head_dim", "shared_experts", "window",
    "global_every", "gate_rank", "conv_taps", "rope_theta", "query_multiplier", "combine_sum",
    "init_scale", "norm_epsilon", "z_loss", "auxiliary_balance", "sequence_balance", "dtype",
)  # fmt: skip
POOLED_RECIPE = ("waves", "transport_capacity", "receiver_capacity", "drop_policy", "stripe")
RECIPE_KEYS = (
    "recipe", "seq_len", "capacity", "mixture", "data", "tokenizer", "optimizer", "schedule",
    "warmup", "floor_fraction", "qk_extension", "evaluation_tokens", "evaluation_seq_len",
    *MODEL_RECIPE, *POOLED_RECIPE,
)  # fmt: skip
_STEPS_AGREE = 0.02  # relative: figures are published rounded, steps x batch is exact
_MOST_EVALUATIONS = 40  # of one rung; more are averaged over windows
_WINDOWS = 20


@dataclass(frozen=True)
class Rung:
    """One run. `metrics`: name -> (steps, values); `figures`: everything else the grid says."""

    name: str
    active_params: float
    tokens: float
    train_flops: float
    steps: int
    metrics: Mapping[str, Curve] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self, metric: str) -> dict[str, Any]:
        """An entry of a grid file with the evaluations of one metric."""
        sizes = {
            "active_params": self.active_params,
            "tokens": self.tokens,
            "train_flops": self.train_flops,
            "steps": self.steps,
        }
        curve = [list(pair) for pair in zip(*self.metrics[metric], strict=True)]
        return {"name": self.name, **sizes, **self.recipe, metric: curve}

    def comparable(self, metric: str, source: str) -> "Rung":
        """The rung with what is finite of its metrics.

        Raises:
          MarinError: a value of `metric`, which is to be compared, is not.
        """
        for step, value in zip(*self.metrics[metric], strict=True):
            if not np.isfinite(value):
                raise MarinError(
                    f"{source}, rung {self.name}, {metric}: the value at step {step:g} is {value}; "
                    "drop that evaluation or compare another --metric"
                )
        finite = {name: _finite(curve) for name, curve in self.metrics.items()}
        return replace(self, metrics={name: curve for name, curve in finite.items() if curve[0]})

    def curve(self, metric: str) -> tuple[Array, Array]:
        """Progress in (0, 1] and values, each [n]; dense curves are averaged over 5 % windows."""
        progress, values = self._points(metric)
        if len(progress) <= _MOST_EVALUATIONS:
            return progress, values
        window = _window(progress)
        kept = np.unique(window)
        return (
            np.array([progress[window == w].mean() for w in kept]),
            np.array([values[window == w].mean() for w in kept]),
        )

    def windows(self, metric: str) -> dict[float, float]:
        """Where each 5 % window of the run that has values ends -> the mean of its values."""
        progress, values = self._points(metric)
        window = _window(progress)
        return {int(w) / _WINDOWS: float(values[window == w].mean()) for w in np.unique(window)}

    def _points(self, metric: str) -> tuple[Array, Array]:
        steps, values = (np.asarray(column, np.float64) for column in self.metrics[metric])
        return np.minimum((steps + 1) / self.steps, 1.0), values


@dataclass(frozen=True)
class Ladder:
    """Rungs in the order of their FLOPs, and the metric that is compared between them."""

    rungs: tuple[Rung, ...]
    metric: str
    source: str = "ladder"

    @property
    def fitted(self) -> tuple[Rung, ...]:
        """The rungs that have evaluations of the metric."""
        return tuple(rung for rung in self.rungs if self.metric in rung.metrics)

    def rung(self, name: str) -> Rung | None:
        return next((rung for rung in self.rungs if rung.name == name), None)


def build_ladder(rungs: Sequence[Rung], metric: str | None, source: str) -> Ladder:
    """Checks that the rungs can be compared and picks the metric.

    Raises:
      MarinError: fewer than three rungs have evaluations, they do not share the metric, a value of
        it is not finite, or their recipes differ.
    """
    ordered = tuple(sorted(rungs, key=lambda rung: (rung.train_flops, rung.name)))
    names = [rung.name for rung in ordered]
    for name in names:
        if names.count(name) > 1:
            raise MarinError(
                f"{source}: rung {name} appears {names.count(name)} times; name each once"
            )
    evaluated = [rung for rung in ordered if rung.metrics]
    if len(evaluated) < MINIMUM_RUNGS:
        found = ", ".join(rung.name for rung in evaluated) or "none"
        raise MarinError(
            f"{source}: {len(evaluated)} rungs with evaluations ({found}); a fit needs at least "
            f"{MINIMUM_RUNGS}"
        )
    logged = {rung.name: rung.metrics for rung in evaluated}
    chosen = choose_metric(logged, metric, source)
    _check_recipes(ordered, source)
    sizes = {rung.train_flops for rung in evaluated}
    if len(sizes) < MINIMUM_RUNGS:
        raise MarinError(
            f"{source}: only {len(sizes)} different computes among {len(evaluated)} rungs; a fit "
            f"needs at least {MINIMUM_RUNGS}"
        )
    return Ladder(
        tuple(rung.comparable(chosen, source) if rung.metrics else rung for rung in ordered),
        chosen,
        source,
    )


def _check_recipes(rungs: Sequence[Rung], source: str) -> None:
    for key in RECIPE_KEYS:
        stated = [(rung.name, rung.recipe[key]) for rung in rungs if key in rung.recipe]
        for name, value in stated[1:]:
            if value != stated[0][1]:
                raise MarinError(
                    f"{source}: mixed recipes: {key} is {stated[0][1]} in {stated[0][0]} and "
                    f"{value} in {name}; a ladder compares runs of one recipe"
                )


def load_grid(path: Path, metric: str | None = None) -> Ladder:
    """Reads a grid file.

    Raises:
      MarinError: the file cannot be read, a figure or an evaluation is unusable, or the rungs
        cannot be compared.
    """
    return build_ladder(read_rungs(path), metric, str(path))


def read_rungs(path: Path) -> list[Rung]:
    """The rungs of a grid file, in its order, not compared yet."""
    raw = read_json(path, "a grid of rungs")
    entries = raw.get("rungs") if isinstance(raw, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise MarinError(f"{path}: no list `rungs` of objects; expected a grid of rungs")
    return [rung_from(entry, path) for entry in entries]


def rung_from(entry: Mapping[str, Any], path: Path) -> Rung:
    """One rung of the grid at `path`; `history` names a file of evaluations beside it."""
    name = str(entry.get("name", "?"))
    where = f"{path}, rung {name}"
    curves: dict[str, Curve] = {}
    steps_total = int(_figure(entry, "steps", where))
    if not steps_total:
        raise MarinError(f"{where}: steps is {entry['steps']!r}; expected at least 1")
    if "history" in entry:
        for metric, (steps, values) in read_history(path.parent / str(entry["history"])).items():
            curves[metric] = checked_curve(steps, values, f"{where}, {metric}", steps_total)
    for key, value in entry.items():
        if _is_curve(value):
            try:
                pairs = [(float(step), float(figure)) for step, figure in value]
            except MALFORMED:
                raise MarinError(
                    f"{where}, {key}: expected pairs [step, value] of numbers"
                ) from None
            curves[key] = checked_curve(
                [pair[0] for pair in pairs],
                [pair[1] for pair in pairs],
                f"{where}, {key}",
                steps_total,
            )
    tokens = _figure(entry, "tokens", where)
    if {"batch_sequences", "seq_len"} <= entry.keys():
        exact = steps_total * math.prod(
            _figure(entry, key, where) for key in ("batch_sequences", "seq_len")
        )
        if abs(exact / tokens - 1) <= _STEPS_AGREE:
            tokens = exact
    active = _figure(entry, "active_params", where)
    check_names([name, *curves], path)
    return Rung(
        name=name,
        active_params=active,
        tokens=tokens,
        train_flops=_figure(entry, "train_flops", where, default=6 * active * tokens),
        steps=steps_total,
        metrics=curves,
        # A loss and its coefficient can have one name: curves are no recipe.
        recipe={key: entry[key] for key in RECIPE_KEYS if key in entry and key not in curves},
        figures={key: value for key, value in entry.items() if not _is_curve(value)},
    )


def checked_curve(
    steps: Sequence[float], values: Sequence[float], where: str, total: int | None
) -> Curve:
    """A curve whose steps rise strictly.

    Raises:
      MarinError: they do not, or a step lies beyond the run's `total` steps.
    """
    for index, step in enumerate(steps):
        if index and step <= steps[index - 1]:
            raise MarinError(
                f"{where}: step {step:g} follows step {steps[index - 1]:g}; steps must rise"
            )
        if not np.isfinite(step):
            raise MarinError(f"{where}: step {step}; expected a number")
        if step < 0 or (total is not None and step > total):
            raise MarinError(f"{where}: step {step:g} lies outside the run's {total} steps")
    return tuple(steps), tuple(values)


def check_names(names: Iterable[str], path: Path) -> None:
    """Raises `MarinError` for the name of a rung or a metric that no file can hold."""
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise MarinError(f"{path}: the name {name!a} is no Unicode text; rename it") from None


def _window(progress: Array) -> npt.NDArray[np.int64]:
    return np.ceil(progress * _WINDOWS - 1e-9).astype(int)


def _finite(curve: Curve) -> Curve:
    kept = [(step, value) for step, value in zip(*curve, strict=True) if np.isfinite(value)]
    return tuple(step for step, _ in kept), tuple(value for _, value in kept)


def _is_curve(value: object) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(pair, list) and len(pair) == 2 for pair in value)
    )


def _figure(entry: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = entry.get(key, default)
    if not is_finite(value) or value <= 0:
        raise MarinError(f"{where}: {key} is {value!r:.40}; expected a positive number")
    return float(value)
