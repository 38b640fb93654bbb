"""A plan becomes shards: rows in training order, in files that any Arrow reader maps."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from marin._native import xxh3_file
from marin.engine import (
    Engine,
    FileEntry,
    Manifest,
    Progress,
    Silent,
    Threads,
    file_entry,
    read_manifest,
    stage_directory,
)
from marin.errors import MarinError
from marin.packing.config import ShardConfig
from marin.packing.planned import PlannedRows
from marin.packing.shard import ShardPlace, ShardPlaces, whole_shard, write_shard

STAGE = "shards"


def pack(
    plan: Path,
    root: Path,
    config: ShardConfig = ShardConfig(),
    *,
    store: Path | None = None,
    engine: Engine | None = None,
    progress: Progress = Silent(),
) -> Path:
    """Writes the rows of a plan as shards; returns their directory. Goes on where it was stopped.

    Args:
      store: where the plan's store lies now, if it was moved.
      engine: where shards are written; by default `config.threads` threads of this process.

    Raises:
      MarinError: a file of the plan or of the store is not as its manifest says.
    """
    source = PlannedRows(plan, store)
    engine = engine or Threads(config.threads)
    parameters = {
        "shard_tokens": config.shard_tokens,
        "block_tokens": config.block_tokens,
        "documents": config.documents,
    }
    inputs = {"plan": source.manifest.fingerprint, "store": source.manifest.inputs["store"]}
    with stage_directory(Path(root), STAGE, parameters, inputs) as stage:
        if not stage.finished:
            (stage.path / "index").mkdir(exist_ok=True)
            stage_rows = source.schedule.order.stage_rows
            used = [(int(at), int(cell)) for at, cell in np.argwhere(stage_rows)]
            _check_inputs(source, used, engine, progress)
            places = list(ShardPlaces(_stages(source.manifest), config))
            files = _write(source, stage.path, places, config.documents, engine, progress)
            stage.finish(
                {file.name: file.rows for file in files},
                {
                    **source.manifest.summary,
                    "plan": str(source.path.resolve()),
                    "schedule": source.schedule.to_json(),
                },
                known={file.name: file for file in files},
            )
    return stage.path


def repair(
    shards: Path,
    *,
    plan: Path | None = None,
    store: Path | None = None,
    engine: Engine | None = None,
    progress: Progress = Silent(),
) -> list[str]:
    """Checks every byte of finished shards and writes again what is not as the manifest says.

    Returns:
      One line per damaged file. They are whole again.

    Raises:
      MarinError: the manifest is missing or not the one of these shards, or plan or store are gone.
    """
    shards = Path(shards)
    manifest = read_manifest(shards)
    if manifest.stage != STAGE:
        raise MarinError(f"{shards}: a directory of stage {manifest.stage}, expected {STAGE}")
    engine = engine or Threads()
    config = ShardConfig(**manifest.parameters)
    entries = {file.name: file for file in manifest.files}
    names = {
        shards / name: (place, entries[name].xxh3)
        for place in ShardPlaces(_stages(manifest), config)
        for name in (place.name, place.index_name)
    }
    checks = [_Check(path, checksum) for path, (_, checksum) in names.items()]
    damage: dict[ShardPlace, list[str]] = {}
    with progress.task("Verify shards", total=len(checks)) as task:
        for check, found in zip(checks, engine.map(_damage, checks), strict=True):
            if found:
                place = names[check.path][0]
                damage.setdefault(place, []).append(f"{check.path}: {found}")
            task.advance(1)
    if not damage:
        return []
    source = PlannedRows(plan or Path(manifest.summary["plan"]), store)
    if source.manifest.fingerprint != manifest.inputs["plan"]:
        raise MarinError(
            f"{source.path}: plan {source.manifest.fingerprint[:12]}, but {shards} was packed from "
            f"{manifest.inputs['plan'][:12]}; name that plan"
        )
    broken = list(damage)
    _check_inputs(source, _used_by(source, broken), engine, progress)
    for place in broken:
        (shards / place.name).unlink(missing_ok=True)
    for file in _write(source, shards, broken, config.documents, engine, progress):
        if file != entries[file.name]:
            raise MarinError(
                f"{shards}/{file.name}: written again from its plan it still differs from the "
                "manifest, which is not of these shards; delete manifest.json and pack again"
            )
    return [line for lines in damage.values() for line in lines]


@dataclass(frozen=True)
class _ShardTask:
    """One shard to write, by any process that sees these paths."""

    plan: Path
    store: Path
    fingerprint: str
    directory: Path
    place: ShardPlace
    documents: bool


def _write(
    source: PlannedRows,
    directory: Path,
    places: Sequence[ShardPlace],
    documents: bool,
    engine: Engine,
    progress: Progress,
) -> list[FileEntry]:
    """Writes shards that are not whole; returns the entries of all of them and their indices."""
    tasks = [
        _ShardTask(
            source.path.absolute(),
            source.store.path.absolute(),
            source.manifest.fingerprint,
            directory.absolute(),
            place,
            documents,
        )
        for place in places
    ]
    files: list[FileEntry] = []
    with progress.task("Write rows", total=sum(place.rows for place in places)) as task:
        for place, entries in zip(places, engine.map(_write_one, tasks), strict=True):
            files += entries
            task.advance(place.rows)
    return files


def _write_one(task: _ShardTask) -> list[FileEntry]:
    place = task.place
    shard = whole_shard(task.directory, place)
    if shard is None:
        source = _rows_of(task.plan, task.store, task.fingerprint)
        shard = write_shard(task.directory, place, source, task.documents)
    return [shard, file_entry(task.directory, place.index_name, place.rows)]


@lru_cache(maxsize=1)
def _rows_of(plan: Path, store: Path, fingerprint: str) -> PlannedRows:
    """The open plan, once per process; `fingerprint` tells apart what stood at the same paths."""
    source = PlannedRows(plan, store)
    if source.manifest.fingerprint != fingerprint:
        raise MarinError(f"{plan}: another plan than when packing began; pack again")
    return source


@dataclass(frozen=True)
class _Check:
    path: Path
    xxh3: str


def _damage(check: _Check) -> str:
    if not check.path.is_file():
        return "missing"
    return "" if xxh3_file(check.path) == check.xxh3 else "differs from its checksum"


def _check_inputs(
    source: PlannedRows, used: Iterable[tuple[int, int]], engine: Engine, progress: Progress
) -> None:
    """Reads the files that rows of these (stage, cell) come from, so that no damage is packed."""
    checks = [_Check(path.absolute(), xxh3) for path, xxh3 in source.inputs(used).items()]
    with progress.task("Verify plan and store", total=len(checks)) as task:
        for check, found in zip(checks, engine.map(_damage, checks), strict=True):
            if found:
                stage = "plan again" if source.path.absolute() in check.path.parents else ""
                raise MarinError(f"{check.path}: {found}; {stage or 'build the store again'}")
            task.advance(1)


def _used_by(source: PlannedRows, places: Iterable[ShardPlace]) -> set[tuple[int, int]]:
    """The (stage, cell) of all rows of some shards."""
    used: set[tuple[int, int]] = set()
    for place in places:
        stages, cells, _ = source.schedule.order.rows(place.first_row, place.rows)
        pairs = np.unique(np.stack([stages, cells], axis=1), axis=0)
        used |= {(int(stage), int(cell)) for stage, cell in pairs}
    return used


def _stages(manifest: Manifest) -> list[tuple[int, int]]:
    return [(stage["rows"], stage["row_length"]) for stage in manifest.summary["stages"]]
