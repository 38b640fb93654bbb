"""Checkpoints that are complete, verified, or not there at all.

    checkpoints/step-00000050/
      arrays/          Orbax (OCDBT), every array under its dotted name, independent of the mesh
      state.json       what is not an array: step, cursor, curriculum, counters
      manifest.json    checksum of every file; written last, so it marks the checkpoint as complete

A save copies the arrays to the host and returns; writing, checksums and retention happen behind
the next steps. A directory without a manifest is a save that was killed and counts as absent.
"""

import errno
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from marin.engine import read_json, read_manifest, verify_files, write_json, write_manifest
from marin.engine.manifest import MANIFEST_NAME
from marin.errors import MarinError
from marin.train.processes import ALONE, Processes

STATE_NAME = "state.json"
_STAGE = "checkpoint"
_DIRECTORY = re.compile(r"step-(\d{8,})")
_DISK_FULL = re.compile(rf"os_error_code='({errno.ENOSPC}|{errno.EDQUOT})'|No space left on device")

Arrays = Mapping[str, jax.Array]


class Checkpoints:
    """The checkpoints of one run, below `root`.

    `keep` complete ones are kept; an older one goes only after a newer one is complete. Errors of
    a background save are raised by the next call of `save`, `check` or `close`. Of several
    processes each writes the arrays it holds, and the first everything else.
    """

    def __init__(self, root: Path, keep: int, processes: Processes = ALONE) -> None:
        self.root = root
        self._keep = keep
        self._processes = processes
        # Weights barely compress, and compression would cost more time than it saves space.
        handler = ocp.PyTreeCheckpointHandler(use_compression=False)
        self._orbax = ocp.AsyncCheckpointer(handler)
        self._finisher = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return complete_steps(self.root)

    def save(self, step: int, arrays: Arrays, state: Mapping[str, Any]) -> None:
        """Starts the save of `arrays` and `state`; waits only for the save before it."""
        self.wait()
        directory = checkpoint_directory(self.root, step)
        if self._processes.is_first:
            if directory.exists():
                _remove(directory)
            directory.mkdir(parents=True)
        self._processes.wait(f"checkpoint {step}")
        self._orbax.save(directory / "arrays", args=ocp.args.PyTreeSave(dict(arrays)))
        self._pending = self._finisher.submit(self._finish, step, dict(state))

    def check(self) -> None:
        """Raises the error of a background save that has failed."""
        with disk_full_as_os_error(self.root):
            self._orbax.check_for_errors()
        if self._pending is not None and self._pending.done():
            self.wait()

    def wait(self) -> None:
        """Returns when the save under way is complete."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            with disk_full_as_os_error(self.root):
                pending.result()

    def close(self) -> None:
        self.wait()
        self._finisher.shutdown()
        self._orbax.close()

    def sweep(self, after: int) -> None:
        """Removes unfinished saves, and every checkpoint past step `after`."""
        if not self._processes.is_first:
            return
        for directory in _directories(self.root).values():
            if not (directory / MANIFEST_NAME).is_file():
                _remove(directory)
        for step in self.steps():
            if step > after:
                _remove(checkpoint_directory(self.root, step))

    def restore(
        self, step: int, like: Mapping[str, jax.ShapeDtypeStruct], *, prefixes: tuple[str, ...] = ()
    ) -> dict[str, jax.Array]:
        """The arrays of a checkpoint that `read_state` has verified.

        `like` names every array with its shape, dtype and the sharding it shall have here. With
        `prefixes` only those are read whose names begin so.

        Raises:
          MarinError: the checkpoint holds other names, shapes or dtypes.
        """
        path = checkpoint_directory(self.root, step) / "arrays"
        found = self._orbax.metadata(path).item_metadata
        _compare(path, found, like)
        arguments = {
            name: ocp.ArrayRestoreArgs(sharding=leaf.sharding, dtype=leaf.dtype)
            for name, leaf in like.items()
            if not prefixes or name.startswith(prefixes)
        }
        chosen = ocp.args.PyTreeRestore(
            item={name: like[name] for name in arguments},
            restore_args=arguments,
            partial_restore=bool(prefixes),
        )
        return dict(self._orbax.restore(path, args=chosen))

    def _finish(self, step: int, state: dict[str, Any]) -> None:
        self._orbax.wait_until_finished()  # of all processes
        if not self._processes.is_first:
            return
        directory = checkpoint_directory(self.root, step)
        write_json(directory / STATE_NAME, {**state, "step": step})
        files = [path for path in directory.rglob("*") if path.is_file()]
        names = sorted(path.relative_to(directory).as_posix() for path in files)
        write_manifest(
            directory,
            _STAGE,
            parameters={"step": step},
            inputs={},
            rows=dict.fromkeys(names, 1),
        )
        for old in self.steps()[: -self._keep]:
            _remove(checkpoint_directory(self.root, old))


def complete_steps(root: Path) -> list[int]:
    """Steps below `root` whose checkpoints are marked complete, ascending."""
    found = _directories(root)
    return sorted(step for step, path in found.items() if (path / MANIFEST_NAME).is_file())


def checkpoint_directory(root: Path, step: int) -> Path:
    return root / f"step-{step:08d}"


def read_state(root: Path, step: int) -> dict[str, Any]:
    """Verifies every file of a checkpoint and reads its `state.json`.

    Raises:
      MarinError: a file is missing or altered, or the checkpoint is of another step than its name
        says; the message names it and the complete checkpoint before it.
    """
    directory = checkpoint_directory(root, step)
    before = [other for other in complete_steps(root) if other < step]
    offer = f"go on from the one before with --at {before[-1]}" if before else "none is before it"
    try:
        manifest = read_manifest(directory)
    except MarinError as error:
        raise MarinError(f"{error}; this checkpoint is damaged, {offer}") from None
    for fault in verify_files(directory, manifest):
        raise MarinError(f"{fault}; this checkpoint is damaged, {offer}")
    state: dict[str, Any] = read_json(directory / STATE_NAME, "the state of a checkpoint")
    if not isinstance(state, dict):
        raise MarinError(f"{directory / STATE_NAME}: no JSON object; {offer}")
    for source, found in ((MANIFEST_NAME, manifest.parameters), (STATE_NAME, state)):
        if found.get("step") != step:
            raise MarinError(
                f"{directory / source}: is of step {found.get('step')}, expected {step}; {offer}"
            )
    return state


def _compare(path: Path, found: Any, like: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    missing = sorted(set(like) - set(found))
    extra = sorted(set(found) - set(like))
    if missing or extra:
        name, what = (missing[0], "lacks") if missing else (extra[0], "has an unknown")
        raise MarinError(f"{path}: {what} array {name}; it is of another model or optimizer")
    for name, leaf in like.items():
        shape, dtype = tuple(found[name].shape), np.dtype(found[name].dtype)
        if shape != leaf.shape or dtype != leaf.dtype:
            raise MarinError(
                f"{path}: array {name} is {dtype}{list(shape)}, the configured model has "
                f"{leaf.dtype}{list(leaf.shape)}"
            )


def _directories(root: Path) -> dict[int, Path]:
    if not root.is_dir():
        return {}
    matches = ((_DIRECTORY.fullmatch(path.name), path) for path in root.iterdir())
    return {int(match[1]): path for match, path in matches if match and path.is_dir()}


@contextmanager
def disk_full_as_os_error(root: Path) -> Iterator[None]:
    """Orbax and `shutil` raise errors of their own for a disk that is full."""
    try:
        yield
    except Exception as error:
        if _DISK_FULL.search(str(error)) is None or getattr(error, "errno", None):
            raise
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(root)) from None


def _remove(directory: Path) -> None:
    """Removes a checkpoint so that no kill leaves a part of it that looks complete."""
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    shutil.rmtree(directory)
