"""Sources: where documents come from, and the files behind a path, URL or dataset name."""

import io
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import pyarrow as pa
import pyarrow.fs as pafs

from marin.datakit.walk import Walk, printable
from marin.engine import lies_in
from marin.errors import MarinError

FORMATS = ("parquet", "jsonl", "arrow", "warc", "text")
_SUFFIXES = {
    ".parquet": "parquet", ".pq": "parquet",
    ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
    ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow",
    ".warc": "warc", ".wet": "warc",
}  # fmt: skip
_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_REMOTE = ("s3://", "gs://", "gcs://", "hf://", "http://", "https://", "file://")
_GLOB = re.compile(r"[*?\[]")
_DATASET_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_NAME = re.compile(r"[\w.-]+")
# What fsspec file systems call a file's content or its last change, the best first.
_VERSIONS = (
    "ETag", "Content-MD5", "Digest", "blob_id", "xet_hash", "last_commit", "mtime", "Last-Modified",
)  # fmt: skip
_ATTEMPTS = 6
_FIRST_WAIT = 0.2  # seconds, doubled after each failed attempt

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A set of files whose documents share the value of the column `source`.

    `paths`: files, folders, `*` patterns, `s3://`, `gs://` and `hf://` URLs, or names of Hugging
    Face datasets. `format`: one of `FORMATS`, or `auto` (by suffix; anything unknown is text).
    `text`, `id`, `source`: the columns or keys that hold them; rows without an id get a hash of
    source and content, rows without a source get `name`. `include`: patterns of file names, all
    without. `max_document_bytes`: longer documents are quarantined.
    """

    name: str
    paths: tuple[str, ...]
    format: str = "auto"
    text: str = "text"
    id: str = "id"
    source: str | None = None
    include: tuple[str, ...] = ()
    max_document_bytes: int = 256 << 20


@dataclass(frozen=True)
class SourceFile:
    """One file. `place` names it within its source; `version` changes with its content."""

    location: str
    place: str
    format: str
    codec: str | None
    size: int
    version: str

    @property
    def remote(self) -> bool:
        return self.location.startswith(_REMOTE)

    def open(self) -> Any:
        """A seekable file object; reads of remote files are retried."""
        if self.remote:
            return pa.PythonFile(_RetryingFile(self.location, self.size), mode="r")
        return pa.OSFile(self.location, "rb")

    def stream(self) -> Any:
        """The file's bytes, decompressed."""
        raw = self.open()
        return raw if self.codec is None else pa.CompressedInputStream(raw, self.codec)


def check_name(name: str) -> None:
    """Raises `MarinError` unless `name` may name a source."""
    if not _NAME.fullmatch(name):
        raise MarinError(
            f"source name {name!r}: expected letters, digits and the characters . _ - only"
        )


def locate(
    source: Source, exclude: tuple[Path, ...] = (), *, listed: bool = False
) -> tuple[list[SourceFile], list[str]]:
    """The files of a source in the order of their places, and what could not be read.

    Args:
      listed: remote folders may be as they were when this process listed them before.

    Raises:
      MarinError: a path does not exist, or an object store does not answer.
    """
    if source.format not in ("auto", *FORMATS):
        raise MarinError(
            f"source {source.name!r}: format = {source.format!r}, expected auto or one of "
            f"{', '.join(FORMATS)}"
        )
    if not source.paths:
        raise MarinError(f"source {source.name!r}: paths is empty; name files, folders or URLs")
    walk = Walk(exclude)
    found: list[SourceFile] = []
    for path in source.paths:
        if path.startswith(_REMOTE):
            found.extend(_remote_files(path, source, listed=listed))
        else:
            found.extend(_local_files(path, source, walk))
    found.sort(key=lambda file: (file.place, file.location))
    if source.include:
        found = [file for file in found if _included(file.place, source.include)]
    return found, walk.problems


def check_apart(output: Path, sources: Iterable[Source]) -> None:
    """Raises `MarinError` if `output` is, lies in or lies around a local path of the sources.

    It may lie around a single file, beside which nothing else is read.
    """
    for source in sources:
        for path in source.paths:
            if path.startswith(_REMOTE):
                continue
            for root in _local_roots(path):
                many = root.is_dir() or is_pattern(path)
                if lies_in(output, root) or (many and lies_in(root, output)):
                    raise MarinError(
                        f"source {source.name!r}: {printable(str(root))}: the output {output} is, "
                        "lies in or lies around it; choose another folder for the output"
                    )


def _included(place: str, patterns: tuple[str, ...]) -> bool:
    name = place.rpartition("/")[2]
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_dataset_name(path: str) -> bool:
    """Whether `path`, as the user wrote it, may name a Hugging Face dataset: owner/name."""
    return _DATASET_NAME.fullmatch(path) is not None


def is_pattern(path: str) -> bool:
    """Whether `path` stands for all files and folders that match it."""
    return _GLOB.search(path) is not None


def matching(pattern: str) -> list[Path]:
    """The files and folders that match.

    Raises:
      MarinError: there are none.
    """
    anchor = Path(pattern).anchor
    found = sorted(Path(anchor).glob(os.path.relpath(pattern, anchor) if anchor else pattern))
    if not found:
        raise MarinError(
            f"nothing matches the pattern {printable(pattern)}; check the folder and the suffix"
        )
    return found


def _local_roots(path: str) -> list[Path]:
    """The files and folders that a path or a pattern stands for; none for a dataset's name."""
    if Path(path).exists():
        return [Path(path)]
    return matching(path) if is_pattern(path) else []


def _local_files(path: str, source: Source, walk: Walk) -> Iterator[SourceFile]:
    try:
        roots = _local_roots(path)
    except MarinError as error:
        raise MarinError(f"source {source.name!r}: {error}") from None
    if not roots and is_dataset_name(path):
        yield from _remote_files(f"hf://datasets/{path}", source, dataset=path)
        return
    if not roots:
        raise MarinError(
            f"source {source.name!r}: {printable(path)}: no such file or folder; "
            "name a file, a folder, a pattern, a URL or a Hugging Face dataset (owner/name)"
        )
    for root in roots:
        for file in walk.files(root):
            version = str(file.modified_ns)
            yield source_file(file.path, file.place, file.size, version, source)


def _remote_files(
    url: str, source: Source, dataset: str = "", *, listed: bool = False
) -> Iterator[SourceFile]:
    """`dataset`: what the user wrote, where that is tried as the name of one."""
    where, check = url, "check the URL, the network and the credentials"
    if dataset:
        where = f"{dataset}: no such file or folder here, tried as a Hugging Face dataset"
        check = "check the path, or the dataset's name, the network and HF_TOKEN"
    system, path = filesystem(url)
    scheme, query = url.partition("://")[0], url.partition("?")[2]
    if not listed and (wrapped := _wrapped(system)) is not None:
        wrapped.invalidate_cache()  # of listings: what changed since then would go unnoticed
    try:
        info = with_retries(lambda: system.get_file_info(path))
        if info.type == pafs.FileType.File:
            infos = [info]
        else:
            selector = pafs.FileSelector(path, recursive=True)
            infos = with_retries(lambda: system.get_file_info(selector))
        files = [info for info in infos if info.type == pafs.FileType.File]
        versions = [with_retries(partial(_version, system, info)) for info in files]
    except FileNotFoundError:
        files, versions = [], []
    except Exception as error:  # the HTTP libraries behind a file system have errors of their own
        raise MarinError(
            f"source {source.name!r}: {where}: {_first_line(error)}; {check}"
        ) from None
    if not files:
        raise MarinError(f"source {source.name!r}: {where}: nothing there; {check}")
    for info, version in zip(files, versions, strict=True):
        place = info.path.removeprefix(path).strip("/") or info.base_name
        if any(part.startswith(".") for part in place.split("/")):
            continue
        location = f"{scheme}://{info.path}{'?' if query else ''}{query}"
        if scheme in ("http", "https"):
            location = url
        if version is None:
            raise MarinError(
                f"source {source.name!r}: {location}: the server tells neither a checksum nor a "
                "time of change, so that a change would go unnoticed; download it and name the file"
            )
        yield source_file(location, place, info.size, version, source)


def _version(system: Any, info: pafs.FileInfo) -> str | None:
    """What changes with the content of a remote file, if anything is known that does."""
    if info.mtime_ns is not None:
        return str(info.mtime_ns)
    wrapped = _wrapped(system)
    found = {} if wrapped is None else wrapped.info(info.path)
    known = (found[name] for name in _VERSIONS if found.get(name) is not None)
    version = next(known, None)
    return None if version is None else str(getattr(version, "oid", version))


def _wrapped(system: Any) -> Any:
    """The fsspec file system that a file system of Arrow stands for, if it does."""
    return getattr(getattr(system, "handler", None), "fs", None)


def source_file(location: str, place: str, size: int, version: str, source: Source) -> SourceFile:
    """A file with the format and compression that the source or its suffix says."""
    stem, suffix = os.path.splitext(place.lower())
    codec = _CODECS.get(suffix)
    kind = source.format
    if kind == "auto":
        kind = _SUFFIXES.get(os.path.splitext(stem)[1] if codec else suffix, "text")
    return SourceFile(location, place, kind, codec, size, version)


def filesystem(url: str) -> tuple[Any, str]:
    """The file system behind a URL and the path in it."""
    scheme, _, rest = url.partition("://")
    if scheme in ("http", "https"):
        return _system(scheme, "", ""), url
    path, _, query = rest.partition("?")
    bucket = path.partition("/")[0]
    return _system(scheme, bucket if scheme != "hf" else "", query), path.rstrip("/")


@lru_cache(maxsize=16)
def _system(scheme: str, bucket: str, query: str) -> Any:
    try:
        if scheme == "hf":
            from huggingface_hub import HfFileSystem

            return pafs.PyFileSystem(pafs.FSSpecHandler(HfFileSystem()))
        if scheme in ("http", "https"):
            import fsspec

            return pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem(scheme)))
        return pafs.FileSystem.from_uri(f"{scheme}://{bucket or '/'}{'?' if query else ''}{query}")[
            0
        ]
    except ImportError as error:
        # fsspec says what to install in its own words, without a name.
        remedy = f"; pip install {error.name}" if error.name else ""
        raise MarinError(f"{scheme}://: {_first_line(error)}{remedy}") from None
    except (OSError, ValueError) as error:
        raise MarinError(f"{scheme}://{bucket}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def with_retries(action: Callable[[], T]) -> T:
    """Calls `action` until it does not raise `OSError`, at most six times, waiting longer each
    time (12 s in all); a missing file is not tried again."""
    for attempt in range(_ATTEMPTS):
        try:
            return action()
        except FileNotFoundError:
            raise
        except OSError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_FIRST_WAIT * 2**attempt)
    raise AssertionError("unreachable")


class _RetryingFile(io.RawIOBase):
    """A remote file that reopens itself where a read fails, at the same place."""

    def __init__(self, location: str, size: int) -> None:
        self._location = location
        self._size = size
        self._at = 0
        self._file: BinaryIO | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def size(self) -> int:
        return self._size

    def read(self, size: int | None = -1) -> bytes:
        left = self._size - self._at
        count = left if size is None or size < 0 else min(size, left)
        try:
            data = with_retries(lambda: self._read_once(count))
        except OSError as error:
            raise MarinError(f"{self._location}: {_first_line(error)}; try again later") from None
        self._at += len(data)
        return data

    def _read_once(self, count: int) -> bytes:
        try:
            if self._file is None:
                system, path = filesystem(self._location)
                self._file = system.open_input_file(path)
            self._file.seek(self._at)
            data = cast(bytes, self._file.read(count))
        except (OSError, MarinError):
            self._file = None
            raise
        except Exception as error:  # as in `_remote_files`
            self._file = None
            raise OSError(str(error) or type(error).__name__) from error
        if len(data) < count:
            self._file = None
            raise OSError(f"{len(data)} bytes where {count} were asked, at {self._at}")
        return data
