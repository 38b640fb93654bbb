"""Shards in an object store: what a batch needs is copied to local files of the same layout.

A local copy of a shard is a sparse file into which record batches are written where they belong,
so the reader and its checksums are those of local shards, and a damaged or half transfer is found
as any other damage. The least recently used copies go when they outgrow the cache. The folder with
the copies goes with its process; that of a killed one goes when the next one begins there.
"""

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import IO, TypeVar

import pyarrow.fs as pafs

from marin.engine import make_folder
from marin.engine.lock import LOCK_NAME
from marin.engine.manifest import MANIFEST_NAME
from marin.errors import MarinError

CACHE_BYTES = 4 << 30
"""Local copies by default."""

_PREFIX = "marin-stream-"

_ATTEMPTS = 5
_FIRST_PAUSE = 0.2
"""Seconds before the second attempt; each further pause is twice as long."""

_T = TypeVar("_T")


def is_remote(path: Path | str) -> bool:
    """Whether `path` names an object store (`s3://`, `gs://`, `file://`, ...)."""
    return isinstance(path, str) and "://" in path


class Mirror:
    """Local copies of parts of the files below a URL. Safe to use from several threads.

    Args:
      url: any URL that `pyarrow.fs` reads, or a path within `filesystem`.
      cache: where the folder with the copies is made, which is removed with this object; among the
        temporary files by default.
      limit: most bytes of copies, of which one shard and its index may always be held.
    """

    def __init__(
        self,
        url: str,
        *,
        cache: Path | None = None,
        limit: int = CACHE_BYTES,
        filesystem: pafs.FileSystem | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.url = url
        self._sleep = sleep
        if filesystem is None:
            try:
                filesystem, base = pafs.FileSystem.from_uri(url)
            except (ValueError, OSError) as error:
                raise MarinError(f"{url}: not an object store's URL ({error})") from None
        else:
            base = url
        self._filesystem, self._base = filesystem, base
        folder = Path(tempfile.gettempdir()) if cache is None else Path(cache)
        make_folder(folder)
        _sweep(folder)
        self.path, lock = _make(folder)
        self._limit = limit
        weakref.finalize(self, _remove, self.path, os.getpid(), lock)
        self._held: dict[str, dict[tuple[int, int], int]] = {}
        self._beside: dict[str, Path] = {}
        self._lock = Lock()
        self.fetch(MANIFEST_NAME)

    def fetch_beside(self, name: str, of: str) -> Path:
        """Copies a whole small file that is given up together with the file `of`."""
        with self._lock:
            self._beside[of] = self.fetch(name)
            return self._beside[of]

    def fetch(self, name: str) -> Path:
        """Copies a whole small file."""
        local = self.path / name
        if not local.is_file():
            local.parent.mkdir(parents=True, exist_ok=True)
            content = self._retried(name, partial(self._read, name, None))
            unfinished = local.with_name(f".partial-{local.name}")
            unfinished.write_bytes(content)
            unfinished.replace(local)
        return local

    def fetch_ranges(self, name: str, size: int, ranges: Iterable[tuple[int, int]]) -> list[str]:
        """Copies the byte ranges (begin, end) of a file of `size` bytes that are not here yet.

        Returns the files whose copies were given up to make room.
        """
        with self._lock:
            held = self._held.pop(name, {})
            self._held[name] = held
            missing = [bounds for bounds in ranges if bounds not in held]
            local = self.path / name
            with local.open("r+b" if local.is_file() else "w+b") as file:
                if not held:
                    file.truncate(size)
                for begin, end in _joined(missing):
                    content = self._retried(name, partial(self._read, name, (begin, end)))
                    file.seek(begin)
                    file.write(content)
            held |= {bounds: bounds[1] - bounds[0] for bounds in missing}
            return self._evict()

    def _evict(self) -> list[str]:
        gone = []
        while len(self._held) > 1 and self._bytes() > self._limit:
            name = next(iter(self._held))
            del self._held[name]
            (self.path / name).unlink(missing_ok=True)
            if name in self._beside:
                self._beside.pop(name).unlink(missing_ok=True)
            gone.append(name)
        return gone

    def _bytes(self) -> int:
        beside = sum(path.stat().st_size for path in self._beside.values())
        return beside + sum(sum(ranges.values()) for ranges in self._held.values())

    def _read(self, name: str, bounds: tuple[int, int] | None) -> bytes:
        with self._filesystem.open_input_file(f"{self._base.rstrip('/')}/{name}") as file:
            if bounds is None:
                return bytes(file.read())
            begin, end = bounds
            content = bytes(file.read_at(end - begin, begin))
            if len(content) != end - begin:
                raise OSError(f"{len(content)} bytes instead of {end - begin} at {begin}")
            return content

    def _retried(self, name: str, read: Callable[[], _T]) -> _T:
        pause = _FIRST_PAUSE
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return read()
            except FileNotFoundError as error:
                raise MarinError(f"{self.url}/{name}: not there ({error})") from None
            except OSError as error:
                if attempt == _ATTEMPTS:
                    raise MarinError(
                        f"{self.url}/{name}: not readable after {_ATTEMPTS} attempts ({error}); "
                        "check the store, then go on from the last cursor"
                    ) from None
            self._sleep(pause)
            pause *= 2
        raise AssertionError("the last attempt returns or raises")


def _make(folder: Path) -> tuple[Path, IO[str]]:
    """A folder for copies, and its locked file: the lock ends with the process, however it ends."""
    hidden = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=folder))
    lock = (hidden / LOCK_NAME).open("a")
    with suppress(OSError):  # a file system without locks: nobody sweeps there
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    # Under this name it may be swept, so not before it is locked.
    path = hidden.with_name(hidden.name.removeprefix("."))
    return hidden.rename(path), lock


def _sweep(folder: Path) -> None:
    """Removes copies whose process is gone."""
    for name in folder.glob(f"{_PREFIX}*/{LOCK_NAME}"):
        with suppress(OSError), name.open("a") as lock:  # locked, or of another user
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(name.parent, ignore_errors=True)


def _remove(path: Path, owner: int, lock: IO[str]) -> None:
    # A forked process must not take the copies from its parent.
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
    lock.close()


def _joined(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges that touch become one request."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and joined[-1][1] == begin:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined
