"""A stage: a function from input directories and parameters to one output directory.

The directory's name carries a hash of parameters and inputs, so a changed parameter is another
directory and a finished one is never redone:

    with stage_directory(root, "dedup", parameters, inputs) as stage:
        if not stage.finished:
            ... write files below stage.path ...
            stage.finish(rows={"part-00000.parquet": 10}, summary={...})
    stage.manifest
"""

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from marin.engine.files import PARTIAL_PREFIX, write_json
from marin.engine.lock import LOCK_NAME, held
from marin.engine.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    fingerprint,
    read_manifest,
    verify_files,
    write_manifest,
)
from marin.engine.outputs import check_output_root, lies_in, make_folder, stage_of
from marin.errors import MarinError

_HASH_DIGITS = 12
_BEGUN_NAME = ".begun.json"
"""Stands in a named directory until its manifest does: a `_Begun` as JSON."""


_planning = ContextVar("planning", default=False)


class Unfinished(Exception):
    """Inside `planning()`: the stage whose directory this names would have work to do."""


@contextmanager
def planning() -> Iterator[None]:
    """Stages called inside return finished directories and raise `Unfinished` before any work."""
    token = _planning.set(True)
    try:
        yield
    finally:
        _planning.reset(token)


@dataclass(frozen=True)
class _Begun:
    """Which stage began in a directory: its name, the fingerprint of stage, parameters and inputs,
    and the files that it makes there."""

    stage: str
    fingerprint: str
    makes: tuple[str, ...]


@dataclass
class StageDir:
    """The directory of one stage; `manifest` is set once it is finished."""

    path: Path
    stage: str
    parameters: Mapping[str, Any]
    inputs: Mapping[str, str]
    _manifest: Manifest | None

    @property
    def finished(self) -> bool:
        return self._manifest is not None

    @property
    def manifest(self) -> Manifest:
        if self._manifest is None:
            raise RuntimeError(f"stage {self.stage} in {self.path} has not been finished")
        return self._manifest

    def finish(
        self,
        rows: Mapping[str, int],
        summary: Mapping[str, Any] | None = None,
        known: Mapping[str, FileEntry] | None = None,
    ) -> None:
        """Writes the manifest: `rows` names every file of the directory with its rows; `known`
        are entries of files whose checksums another manifest has, such as hard links."""
        self._manifest = write_manifest(
            self.path,
            self.stage,
            parameters=self.parameters,
            inputs=self.inputs,
            rows=rows,
            summary=summary,
            known=known,
        )


@contextmanager
def stage_directory(
    root: Path,
    stage: str,
    parameters: Mapping[str, Any],
    inputs: Mapping[str, str],
    *,
    directory: Path | None = None,
    makes: Sequence[str] = (),
) -> Iterator[StageDir]:
    """Opens `root/<stage>-<hash of parameters and inputs>` and sweeps what a killed run left.

    A `directory` that the user named is opened instead; see `check_named_directory`. `makes` names
    all files that the stage writes there, those that it removes before its end too.

    Whole files of an unfinished stage stay, so that it can go on from them; partial ones go. If it
    had other parameters or inputs, which only a named directory allows, what it made goes too. A
    finished directory whose files are missing or cut counts as unfinished: its manifest goes.

    An unfinished directory is held by this process until the end; tasks of its engine write there.

    Raises:
      MarinError: another process holds it; the named directory holds another result or files of
        somebody else; or the directory would lie in a finished one or below a file.
      Unfinished: inside `planning()`, where the stage would have work to do.
    """
    # As JSON reads back, so that a tuple in a configuration equals the list in the manifest.
    identity = json.loads(
        json.dumps({"stage": stage, "parameters": dict(parameters), "inputs": dict(inputs)})
    )
    name = fingerprint(identity)
    path = directory or root / f"{stage}-{name[:_HASH_DIGITS]}"
    manifest = finished_stage(path)
    if manifest is None and _planning.get():
        raise Unfinished(path)
    if directory is not None:
        check_named_directory(directory, stage)
    else:
        check_output_root(root)
    make_folder(path)
    with ExitStack() as stack:
        if manifest is None:
            stack.enter_context(held(path, "choose another directory"))
            # The process that held it before may have finished the stage.
            manifest = finished_stage(path)
        if manifest is not None and identity != {
            "stage": manifest.stage,
            "parameters": manifest.parameters,
            "inputs": manifest.inputs,
        }:
            raise MarinError(
                f"{path}: holds a finished {manifest.stage} of other inputs or parameters; "
                "choose another directory or remove this one"
            )
        if manifest is None:
            if directory is not None:
                _begin(path, _Begun(stage, name, tuple(makes)))
            (path / MANIFEST_NAME).unlink(missing_ok=True)
            _sweep(path)
        stage_dir = StageDir(path, stage, parameters, inputs, manifest)
        yield stage_dir
        if not stage_dir.finished:
            raise RuntimeError(f"stage {stage} ended without finish() in {path}")
        for mark in (_BEGUN_NAME, LOCK_NAME):
            (path / mark).unlink(missing_ok=True)


def _sweep(path: Path) -> None:
    """Removes the partial files of processes that are gone."""
    for partial in list(path.rglob(f"{PARTIAL_PREFIX}*")):
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def check_named_directory(path: Path, stage: str) -> None:
    """Checks that `stage` may write into `path`, a directory that the user named.

    Raises:
      MarinError: it is neither new nor empty, nor was begun or finished by the same stage; or it
        lies in another finished stage or below a file.
    """
    check_output_root(path.parent)
    if path.exists() and not path.is_dir():
        raise MarinError(f"{path}: not a folder; name a new or empty one for the {stage}")
    if not path.is_dir() or all(_is_first(file.name) for file in path.iterdir()):
        return
    begun = _begun(path)
    holder = stage_of(path) or (begun and begun.stage)
    if holder is None:
        raise MarinError(
            f"{path}: holds files that no {stage} of marin's wrote; name a new or empty folder"
        )
    if holder != stage:
        raise MarinError(f"{path}: holds {holder}, not {stage}; name a new or empty folder")


def _is_first(name: str) -> bool:
    """Whether a stage leaves this in a directory before it has marked it as begun."""
    return name == LOCK_NAME or (name.startswith(PARTIAL_PREFIX) and name.endswith(_BEGUN_NAME))


def _begin(path: Path, begun: _Begun) -> None:
    """Marks `path` as the directory of `begun`, rid of what a stage of another identity made."""
    before = _begun(path)
    if before == begun:
        return
    if before is not None and before.fingerprint != begun.fingerprint:
        _remove(path, before.makes)
    write_json(path / _BEGUN_NAME, asdict(begun))


def _begun(path: Path) -> _Begun | None:
    try:
        value = json.loads((path / _BEGUN_NAME).read_text())
        return _Begun(value["stage"], value["fingerprint"], tuple(value["makes"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _remove(path: Path, names: Iterable[str]) -> None:
    """Removes files below `path`, and the folders that this leaves empty."""
    folders: set[Path] = set()
    for name in names:
        file = path / name
        if lies_in(file.parent, path) and (file.is_file() or file.is_symlink()):
            file.unlink()
            folders.update(folder for folder in file.parents if path in folder.parents)
    for folder in sorted(folders, reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()


def finished_stage(path: Path) -> Manifest | None:
    """The manifest of `path` if all of its files are there in their full size, else None."""
    try:
        manifest = read_manifest(path)
    except MarinError:
        return None
    damaged = any(True for _ in verify_files(path, manifest, content=False))
    return None if damaged else manifest
