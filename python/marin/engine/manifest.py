"""`manifest.json`: what a directory holds, from what it was made, and that it is complete.

The manifest is written last and atomically, so a directory without one is unfinished. Its
fingerprint names the content: two directories made by the same stage with the same parameters
from the same inputs, byte for byte, have the same one.
"""

import gc
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from marin._native import xxh3_bytes, xxh3_file
from marin.engine.files import atomic_file
from marin.errors import MALFORMED, MarinError

FORMAT_VERSION = 1
MANIFEST_NAME = "manifest.json"
_CHECKSUM = "checksum"
_NO_CHECKSUM = "-" * 32
"""Stands for the checksum in the text that it is of."""


class FileEntry(NamedTuple):
    """One file of the directory. `name` is relative to it, with `/` between folders. It is a tuple
    because directories with tens of thousands of files are to open at once."""

    name: str
    rows: int
    bytes: int
    xxh3: str


_ENTRY = itemgetter(*FileEntry._fields)


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says.

    `parameters` and `inputs` decide what is computed: JSON values, and fingerprints of the inputs
    by name. `summary` holds results (counts, tables) that readers want without opening files; it
    takes no part in the fingerprint.
    """

    stage: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, str]
    files: tuple[FileEntry, ...]
    summary: Mapping[str, Any] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> str:
        """32 hex digits over everything but the summary."""
        identity = self.to_json()
        del identity["summary"]
        return fingerprint(identity)

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "parameters": self.parameters,
            "inputs": self.inputs,
            "files": [file._asdict() for file in self.files],
            "summary": self.summary,
            "format_version": self.format_version,
        }

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def fingerprint(value: Any) -> str:
    """32 hex digits that name a JSON value, independent of the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return xxh3_bytes(text.encode())


def write_manifest(
    directory: Path,
    stage: str,
    *,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, str],
    rows: Mapping[str, int],
    summary: Mapping[str, Any] | None = None,
    known: Mapping[str, FileEntry] | None = None,
) -> Manifest:
    """Finishes `directory`: checksums the files named in `rows`, but for those in `known`, and
    writes the manifest."""
    known = known or {}
    files = tuple(
        known.get(name) or file_entry(directory, name, rows[name]) for name in sorted(rows)
    )
    manifest = Manifest(stage, dict(parameters), dict(inputs), files, dict(summary or {}))
    value = {**manifest.to_json(), _CHECKSUM: _NO_CHECKSUM}
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    with atomic_file(directory / MANIFEST_NAME) as partial:
        partial.write_text(text.replace(_NO_CHECKSUM, xxh3_bytes(text.encode()), 1))
    return manifest


def file_entry(directory: Path, name: str, rows: int) -> FileEntry:
    """The entry of a file as it is now."""
    path = directory / name
    return FileEntry(name, rows, path.stat().st_size, xxh3_file(path))


def read_manifest(directory: Path) -> Manifest:
    """Reads the manifest of a finished directory.

    Raises:
      MarinError: there is none, it is damaged, or it is of another format version.
    """
    path = directory / MANIFEST_NAME
    try:
        text = path.read_text()
        with _no_garbage_collection():
            raw = json.loads(text)
            if not isinstance(raw, dict):
                raise TypeError(f"a {type(raw).__name__}, expected an object")
            files = tuple(map(FileEntry._make, map(_ENTRY, raw.pop("files"))))
        checksum = raw.pop(_CHECKSUM, _NO_CHECKSUM)
        intact = checksum == xxh3_bytes(text.replace(checksum, _NO_CHECKSUM, 1).encode())
        manifest = Manifest(files=files, **raw)
    except FileNotFoundError:
        if not directory.exists():
            raise MarinError(f"{directory}: no such directory") from None
        raise MarinError(
            f"{directory}: no {MANIFEST_NAME}, so it is unfinished or not a directory of marin's; "
            "run the stage that writes it"
        ) from None
    except NotADirectoryError:
        raise MarinError(f"{directory}: a file, expected a directory of marin's") from None
    except (OSError, *MALFORMED) as error:
        raise MarinError(
            f"{path}: not a readable manifest ({error}); run its stage again"
        ) from None
    if manifest.format_version != FORMAT_VERSION:
        raise MarinError(
            f"{path}: format version {manifest.format_version}, expected {FORMAT_VERSION}; "
            "run its stage again with this version of marin"
        )
    if not intact:
        raise MarinError(
            f"{path}: damaged or edited, its content differs from its checksum; run its stage again"
        )
    return manifest


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """For what makes many objects and no cycles: looking for those takes longer than the work."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def verify_files(directory: Path, manifest: Manifest, *, content: bool = True) -> Iterable[str]:
    """Yields one line for every file that is missing, or differs in size or checksum."""
    for entry in manifest.files:
        path = directory / entry.name
        if not path.is_file():
            yield f"{path}: missing"
        elif path.stat().st_size != entry.bytes:
            yield f"{path}: {path.stat().st_size} bytes, the manifest says {entry.bytes}"
        elif content and xxh3_file(path) != entry.xxh3:
            yield f"{path}: content differs from the checksum in the manifest"
