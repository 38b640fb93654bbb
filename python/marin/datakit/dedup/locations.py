"""Parquet files by their locations: paths of this machine, or URLs of an object store."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from marin._native import xxh3_bytes, xxh3_file
from marin.datakit.sources import Source, SourceFile, filesystem, locate, with_retries
from marin.engine import lies_in as path_lies_in
from marin.engine import read_manifest, verify_files
from marin.engine.manifest import MANIFEST_NAME
from marin.errors import MarinError

Place = Path | str
"""A path, or a URL as a string."""


def is_url(place: Place) -> bool:
    return isinstance(place, str) and "://" in place


def parquet_files(place: Place) -> Iterator[tuple[str, str, list[int] | None, str]]:
    """(name within `place`, location, `time_and_size`, fingerprint) of one Parquet file or of those
    in a directory. The time is read first: it is not that of a file written after the checksum.

    The fingerprint is a checksum, taken from the manifest where there is one; in an object store it
    stands for location, size and time of change.

    Raises:
      MarinError: there is nothing, or a directory that is unfinished.
    """
    if is_url(place):
        for found in _located(str(place)):
            yield found.place, found.location, None, _identity(found)
        return
    path = Path(place)
    if path.is_file():
        yield path.name, str(path), time_and_size(str(path)), xxh3_file(path)
    elif (path / MANIFEST_NAME).is_file():
        manifest = read_manifest(path)
        for problem in verify_files(path, manifest, content=False):
            raise MarinError(problem)
        for entry in manifest.files:
            if entry.name.endswith(".parquet"):
                location = str(path / entry.name)
                yield entry.name, location, time_and_size(location), entry.xxh3
    elif path.is_dir():
        for file in sorted(path.rglob("*.parquet")):
            name = file.relative_to(path).as_posix()
            yield name, str(file), time_and_size(str(file)), xxh3_file(file)
    else:
        raise MarinError(f"{path}: no such file or directory")


def fingerprint_of(location: str) -> str:
    """The fingerprint of one file, as `parquet_files` gives it, from what is there now.

    Raises:
      MarinError: the file is gone.
    """
    if is_url(location):
        return _identity(_located(location)[0])
    try:
        return xxh3_file(Path(location))
    except OSError as error:
        raise MarinError(f"{location}: cannot be read ({error.strerror}); put it back") from None


def time_and_size(location: str) -> list[int] | None:
    """When a file of this machine was changed (ns) and its bytes, which tell without reading it
    that it is the same; None for a URL, or if it is gone."""
    if is_url(location) or not Path(location).is_file():
        return None
    found = Path(location).stat()
    return [found.st_mtime_ns, found.st_size]


def lies_in(directory: Path, place: Place) -> bool:
    """Whether `directory` is `place` or somewhere below it."""
    return not is_url(place) and path_lies_in(directory, Path(place))


def base_name(place: Place) -> str:
    """What tells the files of one place from those of the same names of another."""
    if is_url(place):
        return str(place).partition("?")[0].rstrip("/").rpartition("/")[2]
    return Path(place).resolve().name


def absolute(location: str) -> str:
    return location if is_url(location) else str(Path(location).resolve())


def open_file(location: str) -> Any:
    """What pyarrow reads: the path, or a remote file whose reads are tried again."""
    return _remote(location).open() if is_url(location) else location


@contextmanager
def output_directory(place: Place) -> Iterator[Path]:
    """A directory to write to: `place` itself, or one whose files are sent to the URL `place` when
    the block ends well, the manifest last.
    """
    if not is_url(place):
        yield Path(place)
        return
    with TemporaryDirectory(prefix="marin-") as folder:
        directory = Path(folder) / "out"
        yield directory
        system, base = filesystem(str(place))
        files = [file for file in sorted(directory.rglob("*")) if file.is_file()]
        try:
            for file in sorted(files, key=lambda file: file.name == MANIFEST_NAME):
                target = f"{base}/{file.relative_to(directory).as_posix()}"
                with_retries(partial(_send, system, file, target))
        except OSError as error:
            reason = str(error).strip().partition("\n")[0]
            raise MarinError(f"{place}: cannot be written ({reason})") from None


def _send(system: Any, file: Path, target: str) -> None:
    system.create_dir(target.rpartition("/")[0], recursive=True)
    with system.open_output_stream(target) as stream, file.open("rb") as source:
        stream.upload(source)


def _identity(file: SourceFile) -> str:
    return xxh3_bytes(f"{file.location}\0{file.size}\0{file.version}".encode())


def _located(url: str, *, listed: bool = False) -> list[SourceFile]:
    name = url.partition("?")[0]
    source = Source(name, (url,), format="parquet", include=("*.parquet",))
    return locate(source, listed=listed)[0]


@lru_cache(maxsize=4096)
def _remote(location: str) -> SourceFile:
    return _located(location, listed=True)[0]
