"""Arrow files of any size whose zeros take no room on the disk."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

_LEAST = 4096
"""Bytes of a buffer that may be a hole: less is not worth a page."""


@contextmanager
def sparse_file(path: Path) -> Iterator[pa.NativeFile]:
    """A file to write to in which buffers that begin with 4 KiB of zeros are holes, whatever
    follows in them: they must be all zeros."""
    with pa.PythonFile(_Holes(path), mode="w") as sink:
        yield sink


class _Holes:
    """What `pyarrow.PythonFile` asks of a file object."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.closed = False

    def write(self, data: memoryview) -> int:
        if len(data) >= _LEAST and not any(data[:_LEAST]):
            self._file.seek(len(data), 1)
        else:
            self._file.write(data)
        return len(data)

    def tell(self) -> int:
        return self._file.tell()

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.truncate()
        self._file.close()
        self.closed = True
