"""Where rows come from: shards, or a plan and its store. Both give the same arrays."""

from bisect import bisect_right
from pathlib import Path
from threading import Lock
from typing import Protocol

import numpy as np

from marin._native import Shard, derive_rows, xxh3_file
from marin.engine import Manifest, read_manifest
from marin.errors import MarinError
from marin.packing.config import ShardConfig
from marin.packing.pack import STAGE as SHARDS_STAGE
from marin.packing.plan import STAGE as PLAN_STAGE
from marin.packing.planned import PlannedRows
from marin.packing.shard import REPAIR, open_shard, places
from marin.stream.batch import StageRows
from marin.stream.buffers import RowArrays

_OPEN_SHARDS = 16


class Source(Protocol):
    manifest: Manifest

    @property
    def plan(self) -> str:
        """Fingerprint of the plan."""

    def fill(self, first: int, row_length: int, out: RowArrays) -> None:
        """Fills `out` with the rows from `first` on, which are all of one length."""


def open_source(path: Path, store: Path | None = None) -> Source:
    """Opens a directory of shards, or a plan, whose rows are then assembled from its store."""
    stage = read_manifest(Path(path)).stage
    if stage == SHARDS_STAGE:
        return ShardRows(Path(path))
    if stage == PLAN_STAGE:
        return VirtualRows(PlannedRows(Path(path), store))
    raise MarinError(f"{path}: a directory of stage {stage}, expected shards or a plan")


def stages_of(manifest: Manifest) -> list[StageRows]:
    return [StageRows(stage["rows"], stage["row_length"]) for stage in manifest.summary["stages"]]


class ShardRows:
    """Rows read from shards; few are open at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifest = read_manifest(path)
        if self.manifest.stage != SHARDS_STAGE:
            raise MarinError(f"{path}: a directory of stage {self.manifest.stage}, expected shards")
        parameters = self.manifest.parameters
        config = ShardConfig(parameters["shard_tokens"], parameters["block_tokens"])
        stages = [(stage.rows, stage.seq_len) for stage in stages_of(self.manifest)]
        self._places = places(stages, config)
        self._first = [place.first_row for place in self._places]
        self._files = {file.name: file for file in self.manifest.files}
        self._open: dict[int, Shard] = {}
        self._lock = Lock()

    @property
    def plan(self) -> str:
        return self.manifest.inputs["plan"]

    def fill(self, first: int, row_length: int, out: RowArrays) -> None:
        rows = len(out.cells)
        done = 0
        while done < rows:
            number = bisect_right(self._first, first + done) - 1
            place = self._places[number]
            start = first + done - place.first_row
            count = min(place.rows - start, rows - done)
            at, to = done * row_length, (done + count) * row_length
            try:
                self._shard(number).read(
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

    def _shard(self, number: int) -> Shard:
        with self._lock:
            shard = self._open.pop(number, None)
            if shard is None:
                place = self._places[number]
                index = self.path / place.index_name
                if not index.is_file() or xxh3_file(index) != self._files[place.index_name].xxh3:
                    raise MarinError(f"{index}: missing or damaged; {REPAIR}")
                shard = open_shard(self.path, place)
            self._open[number] = shard
            if len(self._open) > _OPEN_SHARDS:
                self._open.pop(next(iter(self._open)))
            return shard


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
