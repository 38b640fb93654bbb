"""Evaluations as runs and W&B write them: `metrics.jsonl`, exported JSON, exported CSV."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from marin.errors import MarinError
from marin.validation import is_finite

Columns = dict[str, tuple[list[float], list[float]]]
_STEP_KEYS = ("step", "_step", "Step", "global_step", "trainer/global_step")
# W&B's CSV export adds the spread over runs of one group to every column.
_SPREAD = ("__MIN", "__MAX")
_WORDS = ("NaN", "Infinity", "-Infinity", "nan", "inf", "-inf")  # in JSON: of W&B, and of runs


def read_history(path: Path) -> Columns:
    """Metrics by name -> (steps, values), in the file's order.

    `.jsonl`: one object per line; `.json`: a list of objects, or an object with a list `history`;
    `.csv`: W&B's export, whose columns are `run - metric`. The step is `step`, `_step` or `Step`.

    Raises:
      MarinError: the file cannot be read or has no step column.
    """
    try:
        records = _records(path)
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected evaluations as JSON or CSV") from None
    except (ValueError, RecursionError, csv.Error) as error:
        raise MarinError(f"{path}: not readable as {path.suffix or 'JSON'} ({error})") from None
    return columns(records, path)


def columns(records: Iterable[Mapping[str, Any]], path: Path) -> Columns:
    """The numbers of records by key, and the words that stand for NaN and infinities; other values
    are left out."""
    found: Columns = {}
    stepped = False
    for record in records:
        step = next((record[key] for key in _STEP_KEYS if _is_number(record.get(key))), None)
        if step is None:
            continue
        stepped = True
        for key, logged in record.items():
            value = float(logged) if logged in _WORDS else logged
            if key in _STEP_KEYS or not _is_number(value):
                continue
            steps, values = found.setdefault(key, ([], []))
            steps.append(float(step))
            values.append(float(value))
    if not stepped:
        raise MarinError(f"{path}: no record has a step; expected one of {', '.join(_STEP_KEYS)}")
    return found


def _records(path: Path) -> list[Mapping[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        rows = csv.DictReader(text.splitlines())
        names = _metrics(rows.fieldnames or (), path)
        return [{name: _number(row[key]) for key, name in names.items()} for row in rows]
    if path.suffix == ".jsonl":
        raw: Any = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        raw = json.loads(text)
        if isinstance(raw, dict):
            raw = raw.get("history")
    if not isinstance(raw, list) or not all(isinstance(record, dict) for record in raw):
        raise ValueError("expected a list of objects")
    return raw


def _metrics(headers: Sequence[str], path: Path) -> dict[str, str]:
    """Columns -> metrics.

    Raises:
      MarinError: columns are of two runs, or two of one metric.
    """
    names = {key: key.rsplit(" - ", 1)[-1] for key in headers if key and not key.endswith(_SPREAD)}
    # The axis of the export is the step; a run's own count may be another.
    names = {key: name for key, name in names.items() if key == name or name not in _STEP_KEYS}
    runs = sorted({key[: -len(name) - 3] for key, name in names.items() if name != key})
    if len(runs) > 1:
        raise MarinError(
            f"{path}: columns of {len(runs)} runs ({', '.join(runs)}); export each alone"
        )
    for name in names.values():
        if list(names.values()).count(name) > 1:
            raise MarinError(f"{path}: two columns of {name}; leave one")
    return names


def _number(cell: str | None) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    """NaN and infinities, too: the message on them names their step."""
    return is_finite(value) or isinstance(value, float)
