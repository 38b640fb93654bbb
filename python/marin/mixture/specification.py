"""The mixture specification: phases with token budgets and weights per cell.

    {"name": "...", "epoch_cap": 8.0,
     "phases": [{"name": "pretrain", "tokens": 15000000000000, "weights": {"c00q0": 0.1}}, ...],
     "available_tokens": {"c00q0": 4000000}}

in JSON or TOML. Sums are exact (rational numbers), so that no order of keys and no version of
Python matters.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from marin.engine.manifest import fingerprint
from marin.errors import MarinError
from marin.validation import CELL_NAME, is_cell_name, is_count, is_finite, is_text

SIMPLEX_TOLERANCE = Fraction(1, 10**9)
_MAX_NAMED = 4
T = TypeVar("T")


@dataclass(frozen=True)
class Phase:
    """A stretch of training with constant weights. `tokens` is its part of the published budget;
    a run of another horizon takes the same fraction of it."""

    name: str
    tokens: int
    weights: Mapping[str, float]


@dataclass(frozen=True)
class Specification:
    """What to train on: each phase gives every cell of `available_tokens` a weight.

    `epoch_cap` is the most that any cell may be repeated over all phases, None for no limit.
    `store` is the fingerprint of the store that the available tokens were read from, or empty.

    Raises:
      MarinError: on construction, if it breaks a rule; the message names the cells and figures.
    """

    name: str
    phases: tuple[Phase, ...]
    available_tokens: Mapping[str, int]
    epoch_cap: float | None = None
    store: str = ""
    about: str = ""
    source: str = ""
    tokenizer: str = ""

    def __post_init__(self) -> None:
        if problem := _problem(self):
            raise MarinError(f"mixture {self.name}: {problem}")

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """Names in sorted order: the numbering of cells."""
        return tuple(sorted(self.available_tokens))

    @property
    def tokens(self) -> int:
        """The budget of all phases."""
        return sum(phase.tokens for phase in self.phases)

    @property
    def fingerprint(self) -> str:
        """32 hex digits over everything that decides a run: not the name or the notes."""
        identity = self.to_json()
        for key in ("name", "about", "source"):
            identity.pop(key, None)
        return fingerprint(identity)

    def to_json(self) -> dict[str, Any]:
        """A JSON value that `from_json` reads back. Empty fields are left out."""
        fields: dict[str, Any] = {
            "name": self.name,
            "about": self.about,
            "source": self.source,
            "tokenizer": self.tokenizer,
            "store": self.store,
            "epoch_cap": self.epoch_cap,
            "phases": [
                {"name": phase.name, "tokens": phase.tokens, "weights": dict(phase.weights)}
                for phase in self.phases
            ],
            "available_tokens": dict(self.available_tokens),
        }
        return {key: value for key, value in fields.items() if value not in ("", None)}

    @classmethod
    def from_json(cls, value: Any, *, normalize: bool = False) -> "Specification":
        """Reads what a file holds; `normalize` scales each phase's weights to sum to one.

        Raises:
          MarinError: a key is unknown, missing or of the wrong type, or a rule is broken.
        """
        if isinstance(value, dict) and "revisions" in value:
            raise MarinError(
                "a schedule, expected a mixture: the file that marin mix plan made the schedule of"
            )
        _check_keys(value, _FIELDS, ("name", "phases", "available_tokens"), "mixture")
        phases = []
        for number, phase in enumerate(_typed(value, "phases", list, "a list of phases")):
            _check_keys(phase, ("name", "tokens", "weights"), ("tokens", "weights"), "phase")
            weights = _typed(phase, "weights", dict, "a table of weights per cell")
            phases.append(
                Phase(
                    name=phase.get("name", f"phase{number}"),
                    tokens=phase["tokens"],
                    weights=scaled_to_one(weights) if normalize else weights,
                )
            )
        available = _typed(value, "available_tokens", dict, "a table of tokens per cell")
        rest = {k: v for k, v in value.items() if k not in ("phases", "available_tokens")}
        return cls(phases=tuple(phases), available_tokens=available, **rest)

    def with_phases(self, phases: Iterable[Phase]) -> "Specification":
        return replace(self, phases=tuple(phases))


_FIELDS = (
    "name",
    "about",
    "source",
    "tokenizer",
    "store",
    "epoch_cap",
    "phases",
    "available_tokens",
)


def presets() -> tuple[str, ...]:
    """Names of the specifications that ship with the package."""
    names = (entry.name for entry in files("marin.mixture").joinpath("presets").iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in names if name.endswith(".json")))


def load(source: str | Path, *, normalize: bool = False) -> Specification:
    """Reads a JSON or TOML file, or a preset by name.

    Raises:
      MarinError: there is no such file or preset, it cannot be parsed, or it breaks a rule.
    """
    path = Path(source)
    try:
        if str(source) in presets():
            preset = files("marin.mixture").joinpath("presets", f"{source}.json")
            value = json.loads(preset.read_text())
        elif path.suffix == ".toml":
            value = tomllib.loads(path.read_text())
        else:
            value = json.loads(path.read_text(), object_pairs_hook=_unique_keys)
    except FileNotFoundError:
        known = ", ".join(presets())
        raise MarinError(f"{source}: no such file, nor a preset (presets: {known})") from None
    except (OSError, ValueError, RecursionError) as error:
        raise MarinError(f"{source}: not a readable mixture: {error}") from None
    try:
        return Specification.from_json(value, normalize=normalize)
    except MarinError as error:
        raise MarinError(f"{source}: {error}") from None


def named(cells: Iterable[str]) -> str:
    """Cells for a message: the first few, and how many more."""
    ordered = sorted(cells)
    shown = ", ".join(ordered[:_MAX_NAMED])
    more = len(ordered) - _MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _problem(spec: Specification) -> str:
    """What is wrong, in a few words; empty if nothing is."""
    if not is_text(spec.name) or not spec.name:
        return f"name {spec.name!r}, expected text"
    for key in ("store", "about", "source", "tokenizer"):
        if not is_text(getattr(spec, key)):
            return f"{key} {getattr(spec, key)!r}, expected text"
    cap = spec.epoch_cap
    if cap is not None and not (is_finite(cap) and cap > 0):
        return f"epoch_cap {cap!r:.40}, expected a number above 0"
    if not spec.available_tokens:
        return "no cells in available_tokens"
    if not spec.phases:
        return "no phases"
    for cell, tokens in sorted(spec.available_tokens.items()):
        if not is_cell_name(cell):
            return f"cell {cell!r:.60}, expected {CELL_NAME}"
        if not is_count(tokens):
            return (
                f"available_tokens of cell {cell} is {tokens!r:.40}, expected a whole number from "
                "0 to 2^63 - 1"
            )
    names = [str(phase.name) for phase in spec.phases]
    if len(set(names)) < len(names):
        return f"phases {names} share a name"
    for phase in spec.phases:
        if problem := _phase_problem(spec, phase):
            return f"phase {phase.name}: {problem}"
    return ""


def _phase_problem(spec: Specification, phase: Phase) -> str:
    if not is_text(phase.name) or not phase.name:
        return f"name {phase.name!r}, expected text"
    if not is_count(phase.tokens) or phase.tokens == 0:
        return f"tokens {phase.tokens!r:.40}, expected a whole number from 1 to 2^63 - 1"
    known, given = set(spec.available_tokens), set(phase.weights)
    if unknown := given - known:
        return f"weights of unknown cells {named(unknown)}; available_tokens does not name them"
    if missing := known - given:
        return f"no weights for cells {named(missing)}; write 0.0 to leave a cell out"
    for cell, weight in sorted(phase.weights.items()):
        if not is_finite(weight) or weight < 0:
            return f"weight of cell {cell} is {weight!r:.40}, expected a finite number >= 0"
    dry = [c for c, w in phase.weights.items() if w > 0 and spec.available_tokens[c] == 0]
    if dry:
        return f"cells {named(dry)} have a weight but no available tokens; set their weights to 0.0"
    total = sum(map(Fraction, phase.weights.values()), Fraction(0))
    if abs(total - 1) > SIMPLEX_TOLERANCE:
        return f"weights sum to {_shown(total)}, expected 1 within 1e-9; --normalize scales them"
    return ""


def scaled_to_one(weights: Mapping[str, Any]) -> dict[str, float]:
    """Weights divided by their exact sum, each correctly rounded; bad ones stay for validation."""
    good = all(is_finite(w) and w >= 0 for w in weights.values())
    total = sum(map(Fraction, weights.values()), Fraction(0)) if good else Fraction(0)
    if total == 0:
        return dict(weights)
    return {cell: float(Fraction(weight) / total) for cell, weight in weights.items()}


def _check_keys(value: Any, known: Iterable[str], required: Iterable[str], what: str) -> None:
    if not isinstance(value, dict):
        raise MarinError(f"{what} is {value!r:.40}, expected a table")
    if unknown := sorted(set(value) - set(known)):
        raise MarinError(f"{what} has an unknown key {unknown[0]!r}, expected {', '.join(known)}")
    for key in required:
        if key not in value:
            raise MarinError(f"{what} lacks the key {key!r}")


def _typed(value: Mapping[str, Any], key: str, kind: type[T], expected: str) -> T:
    found = value[key]
    if not isinstance(found, kind):
        raise MarinError(f"{key} is {found!r:.40}, expected {expected}")
    return found


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} appears twice")
    return result


def _shown(total: Fraction) -> str:
    """The sum of weights, each of which a float holds, though not all together."""
    return f"{float(total):.12g}" if is_finite(int(total)) else "more than a number holds"
