"""Finding files: safe in the face of loops, devices, odd names and folders that cannot be read."""

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from marin.engine.manifest import MANIFEST_NAME

_VISIBLE = {ord("\n"): "\N{SYMBOL FOR NEWLINE}", ord("\r"): "\N{SYMBOL FOR CARRIAGE RETURN}"}
SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules"})


@dataclass(frozen=True)
class FoundFile:
    """A regular file below `root`. `place` is its path relative to the root, `/`-separated, with
    bytes that are not UTF-8 shown as U+FFFD."""

    path: str
    place: str
    size: int
    modified_ns: int


@dataclass
class Walk:
    """One pass over several roots. A file or folder that is reached twice (symbolic links, hard
    links, roots inside each other) is seen once; `problems` collects what could not be read."""

    problems: list[str]
    special: int
    _seen: set[tuple[int, int]]
    _excluded: frozenset[tuple[int, int]]

    def __init__(self, exclude: Collection[Path] = ()) -> None:
        self.problems = []
        self.special = 0
        self._seen = set()
        self._excluded = frozenset(
            (status.st_dev, status.st_ino) for path in exclude if (status := _status(path))
        )

    def files(self, root: Path) -> Iterator[FoundFile]:
        """Yields the files below `root` (or `root` itself) in the order of their paths.

        Hidden folders, `__pycache__`, folders that hold a manifest of marin's and the excluded
        folders are left out below the root; links are followed, loops are not.
        """
        base = os.fspath(root)
        pending = [(base, "")]
        while pending:
            path, place = pending.pop()
            try:
                status = os.stat(path)
            except OSError as error:
                self.problems.append(f"{printable(path)}: {error.strerror}")
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in self._seen or identity in self._excluded:
                continue
            self._seen.add(identity)
            if stat.S_ISDIR(status.st_mode):
                pending.extend(self._folder(path, place))
            elif stat.S_ISREG(status.st_mode):
                shown = printable(place or os.path.basename(path))
                yield FoundFile(path, shown, status.st_size, status.st_mtime_ns)
            else:
                self.special += 1

    def _folder(self, path: str, place: str) -> Iterator[tuple[str, str]]:
        """The children to visit, last name first: the caller pops them from the end."""
        try:
            with os.scandir(path) as entries:
                children = sorted((entry.name, entry.is_dir()) for entry in entries)
        except OSError as error:
            self.problems.append(f"{printable(path)}: {error.strerror}")
            return
        if place and any(name == MANIFEST_NAME for name, _ in children):
            return
        for name, is_folder in reversed(children):
            if is_folder and (name.startswith(".") or name in SKIPPED_FOLDERS):
                continue
            yield os.path.join(path, name), f"{place}/{name}" if place else name


def printable(path: str) -> str:
    """`path` as valid Unicode on one line, whatever bytes its name holds."""
    return os.fsencode(path).decode("utf-8", "replace").translate(_VISIBLE)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None
