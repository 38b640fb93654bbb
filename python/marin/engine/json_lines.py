"""Files of one JSON object per line that a process may still be writing."""

import json
from pathlib import Path
from typing import Any

from marin.errors import MarinError


def read_json_lines(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """The objects of all complete lines in order, and whether the last line is cut.

    Raises:
      MarinError: the file cannot be read, or a complete line is no JSON object.
    """
    try:
        lines = path.read_bytes().splitlines(keepends=True)
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected the metrics of a run") from None
    cut = bool(lines) and not lines[-1].endswith(b"\n")
    records = []
    for number, line in enumerate(lines[:-1] if cut else lines, 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise MarinError(f"{path}, line {number}: no JSON ({error})") from None
        if not isinstance(record, dict):
            raise MarinError(f"{path}, line {number}: expected a JSON object")
        records.append(record)
    return records, cut
