"""Files that are either complete or absent."""

import json
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from marin._native import start_writeback
from marin.errors import MarinError

PARTIAL_PREFIX = ".partial-"

_WRITEBACK_BYTES = 8 << 20
"""At least so much is handed to the disk at once."""


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; when the block ends well, it becomes `path`.

    The content is flushed to disk before the rename, and the rename before the return, so that
    after a crash `path` is the old file, the new one, or absent, but never a part of one.
    """
    partial = path.with_name(f"{PARTIAL_PREFIX}{os.getpid()}-{path.name}")
    try:
        yield partial
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    _sync_directory(path.parent)


class Writeback:
    """Has the system write a growing file to disk while it grows: the flush at its end waits less.

    `advance(end)` says that the file has `end` bytes now.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begun = 0

    def advance(self, end: int) -> None:
        if end - self._begun >= _WRITEBACK_BYTES:
            start_writeback(self._path, self._begun, end - self._begun)
            self._begun = end


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON with sorted keys, atomically."""
    with atomic_file(path) as partial:
        partial.write_text(json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def read_json(path: Path, what: str) -> Any:
    """The JSON value in a file.

    Raises:
      MarinError: it cannot be read or is no JSON; the message says that `what` was expected.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected {what}") from None
    except (ValueError, RecursionError) as error:
        raise MarinError(f"{path}: no JSON ({error}); expected {what}") from None


def read_toml(path: Path, what: str) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
      MarinError: it cannot be read or is no TOML; the message says that `what` was expected.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected {what} as TOML") from None
    except (ValueError, RecursionError) as error:
        raise MarinError(f"{path}: not valid TOML ({error}); expected {what}") from None


def _sync_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
