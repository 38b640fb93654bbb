"""Rows of a plan, assembled from the store when they are asked for."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from marin._native import PlanRows, StoreCell, assemble_rows, xxh3_file
from marin.engine import read_manifest
from marin.errors import MarinError
from marin.mixture import Schedule
from marin.mixture.order import Places
from marin.mixture.schedule import load_schedule
from marin.packing.layout import ROWS_SCHEMA, SCHEDULE_FILE, STAGE, rows_file
from marin.packing.store import Store


class PlannedRows:
    """A finished plan together with its store. Safe to use from several threads.

    Args:
      store: where the store lies now, if it was moved.

    Raises:
      MarinError: the plan is unfinished or damaged, or the store is not the one that was planned.
    """

    def __init__(self, plan: Path, store: Path | None = None) -> None:
        self.path = Path(plan)
        self.manifest = read_manifest(self.path)
        if self.manifest.stage != STAGE:
            raise MarinError(
                f"{self.path}: a directory of stage {self.manifest.stage}, expected {STAGE}"
            )
        self.store = Store(store or Path(self.manifest.summary["store"]))
        if self.store.manifest.fingerprint != self.manifest.inputs["store"]:
            raise MarinError(
                f"{self.store.path}: store {self.store.manifest.fingerprint[:12]}, but "
                f"{self.path} was planned for {self.manifest.inputs['store'][:12]}; plan again"
            )
        self._files = {file.name: file for file in self.manifest.files}
        self._rows: dict[tuple[int, int], PlanRows] = {}
        self._cells: dict[int, StoreCell] = {}
        self._names: dict[int, pa.ChunkedArray] = {}
        self._lock = Lock()

    @cached_property
    def schedule(self) -> Schedule:
        return load_schedule(self.verified(SCHEDULE_FILE))

    def assemble(
        self, start: int, count: int, row_length: int, tokens: NDArray[np.int32]
    ) -> tuple[NDArray[np.uint16], NDArray[np.int32], NDArray[np.int32]]:
        """Fills `tokens` [count * row_length] with the rows from `start` on, all of one stage.

        Returns:
          The rows' cells, and their segments: offsets [count + 1] and lengths.
        """
        stages, cells, index = self._locate(start, count, row_length)
        stage = int(stages[0])
        used = np.unique(cells).tolist()
        sources: list[tuple[PlanRows, StoreCell] | None] = [None] * (used[-1] + 1)
        for cell in used:
            sources[cell] = (self.plan_rows(stage, cell), self._tokens(cell))
        try:
            offsets, lengths = assemble_rows(sources, cells, index, row_length, tokens)
        except ValueError as error:
            raise MarinError(f"{self.path}: rows {start} to {start + count - 1}: {error}") from None
        return cells, offsets, lengths

    def document_ids(self, start: int, count: int, row_length: int) -> pa.ListArray:
        """Ids of the documents of each row; `id+N` continues a document from its token `N` on."""
        stages, cells, index = self._locate(start, count, row_length)
        counts = np.zeros(count, np.int64)
        names = []
        origin = []
        for cell in np.unique(cells).tolist():
            rows = np.flatnonzero(cells == cell)
            offsets, documents, starts, _ = self.plan_rows(int(stages[0]), cell).pieces(index[rows])
            counts[rows] = np.diff(offsets)
            origin.append(np.repeat(rows, np.diff(offsets)))
            names.append(_piece_names(self._ids(cell).take(pa.array(documents)), starts))
        order = np.argsort(np.concatenate(origin), kind="stable")
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        return pa.ListArray.from_arrays(
            pa.array(ends), pa.concat_arrays(names).take(pa.array(order))
        )

    def _locate(self, start: int, count: int, row_length: int) -> Places:
        places = self.schedule.order.rows(start, count)
        first, last = int(places.stage[0]), int(places.stage[-1])
        if first != last or self.schedule.row_stages[first].seq_len != row_length:
            raise MarinError(
                f"{self.path}: rows {start} to {start + count - 1} are not all of {row_length} "
                "tokens; ask for rows of one length"
            )
        return places

    def plan_rows(self, stage: int, cell: int) -> PlanRows:
        """The rows of one stage and cell, by their index."""
        with self._lock:
            if (stage, cell) not in self._rows:
                name = rows_file(stage, self.schedule.cells[cell])
                self._rows[stage, cell] = PlanRows(read_pieces(self.verified(name)))
            return self._rows[stage, cell]

    def _tokens(self, cell: int) -> StoreCell:
        with self._lock:
            if cell not in self._cells:
                self._cells[cell] = self.store.cell(self.schedule.cells[cell])
            return self._cells[cell]

    def _ids(self, cell: int) -> pa.ChunkedArray:
        with self._lock:
            if cell not in self._names:
                self._names[cell] = self.store.ids(self.schedule.cells[cell])
            return self._names[cell]

    def inputs(self, stages_and_cells: Iterable[tuple[int, int]]) -> dict[Path, str]:
        """The files that rows of these stages and cells come from, and their checksums."""
        pairs = sorted(stages_and_cells)
        names = [rows_file(stage, self.schedule.cells[cell]) for stage, cell in pairs]
        found = {self.checked(name): self._files[name].xxh3 for name in [SCHEDULE_FILE, *names]}
        for cell in sorted({cell for _, cell in pairs}):
            found |= self.store.checksums(self.schedule.cells[cell])
        return found

    def checked(self, name: str) -> Path:
        """The path of one of the plan's files, of the size that the manifest says."""
        path = self.path / name
        entry = self._files.get(name)
        if entry is None or not path.is_file() or path.stat().st_size != entry.bytes:
            raise MarinError(f"{path}: missing or damaged, not as in the manifest; plan again")
        return path

    def verified(self, name: str) -> Path:
        """The path of one of the plan's files, every byte as the manifest says."""
        path = self.checked(name)
        if xxh3_file(path) != self._files[name].xxh3:
            raise MarinError(f"{path}: differs from its checksum; delete it and plan again")
        return path


def read_pieces(path: Path) -> list[pa.ListArray]:
    """The rows of a plan's file, one array per record batch."""
    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (OSError, pa.ArrowException) as error:
        raise MarinError(f"{path}: not readable ({error}); delete it and plan again") from None
    if reader.schema != ROWS_SCHEMA:
        raise MarinError(f"{path}: schema {reader.schema}, expected {ROWS_SCHEMA}; plan again")
    return [batch.column(0) for batch in batches]


def _piece_names(ids: pa.ChunkedArray, starts: NDArray[np.int64]) -> pa.Array:
    offsets = pa.array(starts)
    continued = pc.binary_join_element_wise(ids, pc.cast(offsets, pa.string()), "+")
    names = pc.if_else(pc.greater(offsets, 0), continued, ids)
    return names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names
