"""Evaluations as runs and W&B write them: `metrics.jsonl`, exported JSON, exported CSV."""

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marin.errors import MarinError
from marin.validation import is_finite

Columns = dict[str, tuple[list[float], list[float]]]
_STEP_KEYS = ("step", "_step", "Step", "global_step", "trainer/global_step")
# W&B's CSV export adds the spread over runs of one group to every column.
_SPREAD = ("__MIN", "__MAX")


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
    """The numbers of records by key; other values are left out."""
    found: Columns = {}
    stepped = False
    for record in records:
        step = next((record[key] for key in _STEP_KEYS if _is_number(record.get(key))), None)
        if step is None:
            continue
        stepped = True
        for key, value in record.items():
            if key in _STEP_KEYS or not _is_number(value) or key.endswith(_SPREAD):
                continue
            steps, values = found.setdefault(key.rsplit(" - ", 1)[-1], ([], []))
            steps.append(float(step))
            values.append(float(value))
    if not stepped:
        raise MarinError(f"{path}: no record has a step; expected one of {', '.join(_STEP_KEYS)}")
    return found


def _records(path: Path) -> list[Mapping[str, Any]]:
    text = path.read_text(encoding="utf-8-sig")
    if path.suffix == ".csv":
        rows = csv.DictReader(text.splitlines())
        return [{key: _number(cell) for key, cell in row.items() if key} for row in rows]
    if path.suffix == ".jsonl":
        raw: Any = [json.loads(line) for line in text.splitlines() if line.strip()]
    else:
        raw = json.loads(text)
        if isinstance(raw, dict):
            raw = raw.get("history")
    if not isinstance(raw, list) or not all(isinstance(record, dict) for record in raw):
        raise ValueError("expected a list of objects")
    return raw


def _number(cell: str | None) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    """NaN and infinities, too: the message on them names their step."""
    return is_finite(value) or isinstance(value, float)
