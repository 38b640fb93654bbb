"""`metrics.jsonl`: one object per step, gapless and without duplicates over kills.

Lines are appended and flushed as steps complete. A checkpoint records how long the file was, after
all lines up to its step were on disk; going on from it cuts the file back to that length, so the
steps that are trained again are logged once.
"""

import json
import os
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from marin.engine import json_lines
from marin.errors import MALFORMED, MarinError

METRICS_NAME = "metrics.jsonl"
_LONGEST_LINE = 1 << 20  # bytes; the loads of 384 experts in 48 layers take a fifth of it


class MetricsLog:
    """The open file, cut to `length` bytes."""

    def __init__(self, path: Path, length: int = 0) -> None:
        check_length(path, length)
        self._path = path
        self._file = path.open("ab")
        self._file.truncate(length)
        self._file.seek(length)

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends one line. Numbers that JSON lacks (NaN, Infinity) become strings."""
        line = json.dumps(plain(record), allow_nan=False, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Forces all lines to disk; the length of the file."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def check_length(path: Path, length: int) -> None:
    """Checks that the metrics up to a checkpoint are there.

    Raises:
      MarinError: the file has less than `length` bytes, or is missing.
    """
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        found = f"{size} bytes" if path.exists() else "missing"
        raise MarinError(
            f"{path}: {found}, but the checkpoint was saved after {length} bytes of it; "
            "restore the file or start a new run"
        )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every complete line, in order. Strings that stand for NaN and infinities become floats.

    Raises:
      MarinError: the file cannot be read, or a complete line is no JSON object.
    """
    return list(stream_metrics(path))


def stream_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """`read_metrics`, one line after the other: those of a long run are gigabytes."""
    for record in json_lines(path):
        yield {key: _number(value) for key, value in record.items()}


def last_records(
    path: Path, length: int, count: int, key: str | None = None
) -> list[dict[str, Any]]:
    """The last `count` of the lines that end within the first `length` bytes, read from the end,
    and before them those that have `key`, for which the whole file is read.

    Raises:
      MarinError: one of them is no JSON object.
    """
    if not length:
        return []
    with path.open("rb") as file:
        start = max(0, length - count * _LONGEST_LINE)
        file.seek(start)
        lines = file.read(length - start).splitlines()
    whole = (lines[1:] if start else lines)[-count:]
    if key is not None:
        whole = [*_lines_with(path, length - sum(len(line) + 1 for line in whole), key), *whole]
    try:
        parsed = [json.loads(line) for line in whole]
        return [{key: _number(value) for key, value in line.items()} for line in parsed]
    except MALFORMED as error:
        raise MarinError(
            f"{path}: a line before byte {length:,} is no JSON object ({error}); restore the file "
            "or start a new run"
        ) from None


def _lines_with(path: Path, length: int, key: str) -> Iterator[bytes]:
    needle = json.dumps(key).encode() + b":"
    with path.open("rb") as file:
        for line in file:
            length -= len(line)
            if length < 0:
                return
            if needle in line:
                yield line


def plain(value: Any) -> Any:
    """A value as JSON takes it: numbers that JSON lacks are strings."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    return value


def _number(value: Any) -> Any:
    return float(value) if value in ("nan", "inf", "-inf") else value
