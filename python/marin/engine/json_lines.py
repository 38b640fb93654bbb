"""Files of one JSON object per line that a process may still be writing, a line at a time."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marin.errors import MarinError


def whole_lines(path: Path) -> Iterator[bytes]:
    """The complete lines in order; a last one without its end is left out.

    Raises:
      MarinError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for line in file:
                if line.endswith(b"\n"):
                    yield line
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected the metrics of a run") from None


def json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of all complete lines in order.

    Raises:
      MarinError: the file cannot be read, or a complete line is no JSON object.
    """
    for number, line in enumerate(whole_lines(path), 1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise MarinError(f"{path}, line {number}: no JSON ({error})") from None
        if not isinstance(record, dict):
            raise MarinError(f"{path}, line {number}: expected a JSON object")
        yield record


def ends_cut(path: Path) -> bool:
    """Whether the last line of a file is without its end."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"
