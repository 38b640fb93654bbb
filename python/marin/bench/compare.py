"""Two result files against each other, and all of them over time."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from marin.engine import read_json
from marin.errors import MarinError
from marin.report import Page
from marin.report.charts import lines
from marin.validation import is_finite

Line = Mapping[str, Any]
_NOISE = 0.05
"""Medians closer than this are called the same."""


@dataclass(frozen=True)
class Change:
    """One metric of one tool in both files. `ratio` is after over before, infinite after zero."""

    tool: str
    metric: str
    unit: str
    before: float
    after: float
    ratio: float
    verdict: str
    """faster or slower where the unit says which way is better, else same or changed."""

    def as_json(self) -> dict[str, Any]:
        """Of infinity, which JSON has no word for, None."""
        return {**asdict(self), "ratio": self.ratio if isfinite(self.ratio) else None}


def read_results(path: Path) -> dict[str, Any]:
    """A file of `marin bench NAME --save`: machine and results.

    Raises:
      MarinError: it cannot be read or is something else.
    """
    found = read_json(path, "results of marin bench ... --save")
    found = found if isinstance(found, dict) else {}
    described = isinstance(found.get("machine", ""), str | dict)
    if not described or not isinstance(found.get("results"), list):
        raise MarinError(f"{path}: no results; expected a file of marin bench ... --save")
    for number, line in enumerate(found["results"]):
        if not _is_line(line):
            raise MarinError(
                f"{path}: result {number}: expected tool, version, metric, value, unit and runs"
            )
    return found


def _is_line(line: Any) -> bool:
    return (
        isinstance(line, dict)
        and all(isinstance(line.get(key), str) for key in ("tool", "version", "metric", "unit"))
        and isinstance(line.get("runs"), list)
        and all(map(is_finite, [line.get("value"), *line["runs"]]))
    )


def compare(before: Sequence[Line], after: Sequence[Line]) -> list[Change]:
    """The lines that both have, those that moved most first."""
    earlier = {(line["tool"], line["metric"]): line for line in before}
    changes = []
    for line in after:
        old = earlier.get((line["tool"], line["metric"]))
        if old is None or old["unit"] != line["unit"]:
            continue
        a, b = float(old["value"]), float(line["value"])
        ratio = b / a if a else (1.0 if b == a else float("inf"))
        verdict = _verdict(line["unit"], ratio)
        changes.append(Change(line["tool"], line["metric"], line["unit"], a, b, ratio, verdict))
    return sorted(changes, key=lambda change: -abs(change.ratio - 1))


def _verdict(unit: str, ratio: float) -> str:
    if abs(ratio - 1) < _NOISE:
        return "same"
    if "/s" in unit:
        return "faster" if ratio > 1 else "slower"
    if unit in ("s", "ms", "us"):
        return "faster" if ratio < 1 else "slower"
    return "changed"


def history(folder: Path) -> Page:
    """One page over all result files below `folder`.

    Files of one bench are `<bench>.json` and `<bench>-<label>.json`; their lines are drawn in the
    order of their labels (dates or versions sort), a bare name last.

    Raises:
      MarinError: there is no result file.
    """
    benches: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found = read_results(path)
        except MarinError:
            continue
        name, label = _name_and_label(path.stem)
        benches.setdefault(name, []).append((label, found))
    if not benches:
        raise MarinError(f"{folder}: no result files; write some with marin bench ... --save")
    page = Page("Benchmarks", f"{sum(map(len, benches.values()))} result files of {folder}.")
    for name, files in sorted(benches.items()):
        files.sort(key=lambda entry: (entry[0] == "", entry[0]))
        _add_bench(page, name, files)
    return page


def _name_and_label(stem: str) -> tuple[str, str]:
    """A label begins with a digit: a date or a version."""
    match = re.fullmatch(r"(.+?)-(v?\d.*)", stem)
    return (match[1], match[2]) if match else (stem, "")


def _add_bench(page: Page, name: str, files: Sequence[tuple[str, dict[str, Any]]]) -> None:
    latest = files[-1][1]
    section = page.section(name, f"{_machine(latest)}; medians of all runs, the newest file.")
    rows = [
        [line["tool"], line["version"], line["metric"], float(line["value"]), _spread(line),
         line["unit"]]
        for line in latest["results"]
    ]  # fmt: skip
    section.table(("tool", "version", "metric", "median", "spread", "unit"), rows)
    if len(files) < 2:
        return
    places = list(range(len(files)))
    for line in latest["results"]:
        values = [_value(found["results"], line) for _, found in files]
        if sum(value is not None for value in values) < 2:
            continue
        known = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
        caption = (
            f"{line['tool']}: {line['metric']} over {', '.join(lab or 'now' for lab, _ in files)}"
        )
        xs, ys = zip(*known, strict=True)
        section.plot(caption, lines({line["metric"]: (xs, ys)}, x="result file", y=line["unit"]))


def _value(results: Sequence[Line], wanted: Line) -> float | None:
    keys = ("tool", "metric", "unit")
    for line in results:
        if all(line[key] == wanted[key] for key in keys):
            return float(line["value"])
    return None


def _spread(line: Line) -> str:
    runs = line.get("runs") or []
    if len(runs) < 2:
        return ""
    middle = statistics.median(runs)
    return f"± {100 * (max(runs) - min(runs)) / 2 / middle:.1f} %" if middle else ""


def _machine(found: Mapping[str, Any]) -> str:
    machine = found.get("machine", "")
    if isinstance(machine, str):
        return machine
    return ", ".join(
        str(machine[key]) for key in ("processor", "cores", "python") if key in machine
    )
