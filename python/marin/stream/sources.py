"""Where rows come from: shards, or a plan and its store. Both give the same arrays."""

from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np
import pyarrow as pa

from marin._native import Shard, derive_rows, xxh3_file
from marin.engine import Manifest, read_manifest
from marin.errors import MarinError
from marin.packing.config import ShardConfig
from marin.packing.layout import STAGE as PLAN_STAGE
from marin.packing.pack import STAGE as SHARDS_STAGE
from marin.packing.planned import PlannedRows
from marin.packing.shard import (
    REPAIR,
    ShardPlace,
    ShardPlaces,
    open_shard,
    read_index,
    shard_ranges,
)
from marin.stream.batch import StageRows
from marin.stream.buffers import RowArrays
from marin.stream.remote import CACHE_BYTES, Mirror, is_remote

_OPEN_SHARDS = 16


class Source(Protocol):
    manifest: Manifest

    @property
    def plan(self) -> str:
        """Fingerprint of the plan."""

    def fill(self, first: int, row_length: int, out: RowArrays) -> None:
        """Fills `out` with the rows from `first` on, which are all of one length."""


def open_source(
    path: Path | str,
    store: Path | None = None,
    *,
    cache: Path | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> Source:
    """Opens shards, here or in an object store, or a plan, whose rows are then assembled."""
    if isinstance(path, str) and is_remote(path):
        mirror = Mirror(path, cache=cache, limit=cache_bytes)
        return ShardRows(mirror.path, read_manifest(mirror.path), mirror)
    manifest = read_manifest(Path(path))
    if manifest.stage == PLAN_STAGE:
        return VirtualRows(PlannedRows(Path(path), store))
    return ShardRows(Path(path), manifest)


def stages_of(manifest: Manifest) -> list[StageRows]:
    return [StageRows(stage["rows"], stage["row_length"]) for stage in manifest.summary["stages"]]


class ShardRows:
    """Rows read from shards; few are open at a time.

    Args:
      mirror: copies what is read from an object store to `path`, or None if the shards lie there.
    """

    def __init__(self, path: Path, manifest: Manifest, mirror: Mirror | None = None) -> None:
        self.path = path
        self._mirror = mirror
        self.manifest = manifest
        if manifest.stage != SHARDS_STAGE:
            raise MarinError(
                f"{path}: a directory of stage {manifest.stage}, expected shards or a plan"
            )
        config = ShardConfig(**self.manifest.parameters)
        stages = [(stage.rows, stage.seq_len) for stage in stages_of(self.manifest)]
        self._places = ShardPlaces(stages, config)
        self._files = {file.name: file for file in self.manifest.files}
        self._open: dict[str, tuple[Shard, pa.Table]] = {}
        self._lock = Lock()

    @property
    def plan(self) -> str:
        return self.manifest.inputs["plan"]

    def fill(self, first: int, row_length: int, out: RowArrays) -> None:
        rows = len(out.cells)
        done = 0
        while done < rows:
            place = self._places.of(first + done)
            start = first + done - place.first_row
            count = min(place.rows - start, rows - done)
            at, to = done * row_length, (done + count) * row_length
            try:
                self._shard(place, start, count).read(
                    start,
                    out.tokens[at:to],
                    out.segment_ids[at:to],
                    out.positions[at:to],
                    out.loss_mask[at:to].view(np.uint8),
                    out.cells[done : done + count],
                )
            except ValueError as error:
                raise MarinError(f"{error}; {REPAIR}") from None
            done += count

    def _shard(self, place: ShardPlace, start: int, count: int) -> Shard:
        """The open shard, with the blocks of rows `start..start + count` at hand."""
        with self._lock:
            opened = self._open.pop(place.name, None)
            if opened is None:
                index = self._index(place)
                if self._mirror is not None:
                    size, frame, _ = shard_ranges(index)
                    self._forget(self._mirror.fetch_ranges(place.name, size, frame))
                opened = open_shard(self.path, place, index), index
            if self._mirror is not None:
                size, _, blocks = shard_ranges(opened[1])
                step = place.rows_per_block
                needed = blocks[start // step : (start + count - 1) // step + 1]
                self._forget(self._mirror.fetch_ranges(place.name, size, needed))
            self._open[place.name] = opened
            self._forget(list(self._open)[:-_OPEN_SHARDS])
            return opened[0]

    def _index(self, place: ShardPlace) -> pa.Table:
        if self._mirror is not None:
            self._mirror.fetch_beside(place.index_name, place.name)
        path = self.path / place.index_name
        if not path.is_file() or xxh3_file(path) != self._files[place.index_name].xxh3:
            raise MarinError(f"{path}: missing or damaged; {REPAIR}")
        return read_index(self.path, place)

    def _forget(self, names: list[str]) -> None:
        for name in names:
            self._open.pop(name, None)


class VirtualRows:
    """Rows assembled from the store when they are asked for."""

    def __init__(self, rows: PlannedRows) -> None:
        self._rows = rows
        self.manifest = rows.manifest

    @property
    def plan(self) -> str:
        return self.manifest.fingerprint

    def fill(self, first: int, row_length: int, out: RowArrays) -> None:
        cells, offsets, lengths = self._rows.assemble(first, len(out.cells), row_length, out.tokens)
        out.cells[:] = cells
        derive_rows(
            offsets,
            lengths,
            row_length,
            out.segment_ids,
            out.positions,
            out.loss_mask.view(np.uint8),
        )
