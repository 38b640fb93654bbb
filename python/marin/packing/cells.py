"""The rows of one cell: its documents in the mixture's order, through all row lengths."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marin._native import Packer
from marin.engine import Writeback, atomic_file, write_json
from marin.engine.progress import Task
from marin.errors import MarinError
from marin.mixture import Schedule
from marin.packing.config import PlanConfig
from marin.packing.history import KeptRows
from marin.packing.layout import PIECES, ROWS_SCHEMA, StageCounts, counts_file, rows_file
from marin.packing.store import Store

_FETCH = 1 << 16
"""Most documents that are asked of the schedule at once."""
_NO_LIMIT = 2**62


def plan_cell(
    store: Store,
    schedule: Schedule,
    cell: str,
    directory: Path,
    config: PlanConfig,
    kept: KeptRows,
    task: Task,
) -> list[StageCounts]:
    """Writes the rows of all stages of a cell, unless they are there, and then its counts."""
    number = schedule.cells.index(cell)
    wanted = [int(rows) for rows in schedule.order.stage_rows[:, number]]
    done = directory / counts_file(cell)
    files = [directory / rows_file(stage, cell) for stage, rows in enumerate(wanted) if rows]
    if done.is_file() and all(path.is_file() for path in files):
        task.advance(sum(wanted))
        return [StageCounts(**counts) for counts in json.loads(done.read_text())]
    source = _Documents(store, schedule, cell, config)
    stages = []
    for stage, (rows, row_stage) in enumerate(zip(wanted, schedule.row_stages, strict=True)):
        before = source.counts
        source.set_row_length(row_stage.seq_len)
        if rows:
            path = directory / rows_file(stage, cell)
            path.parent.mkdir(exist_ok=True)
            with (
                atomic_file(path) as partial,
                pa.OSFile(str(partial), "wb") as sink,
                pa.ipc.new_file(sink, ROWS_SCHEMA) as writer,
            ):
                writeback = Writeback(partial)
                for pieces in source.rows(rows, kept.pieces(stage, cell)):
                    writer.write_batch(pa.RecordBatch.from_arrays([pieces], schema=ROWS_SCHEMA))
                    writeback.advance(sink.tell())
                    task.advance(len(pieces))
        stages.append(source.stage_counts(before))
    done.parent.mkdir(exist_ok=True)
    write_json(done, [asdict(counts) for counts in stages])
    return stages


class _Documents:
    """The documents of one cell on their way into rows."""

    def __init__(self, store: Store, schedule: Schedule, cell: str, config: PlanConfig) -> None:
        self._cell = cell
        self._config = config
        self._tokens = store.cell(cell)
        self._order = schedule.order.document_order(cell, self._tokens.documents, schedule.share)
        self._position = 0
        self._mean_length = store.cells[cell].tokens / store.cells[cell].documents
        self._row_length = 1
        self._packer = Packer(config.policy, config.segment_limit, config.min_fill, 1)

    @property
    def counts(self) -> dict[str, int]:
        return self._packer.counts

    def set_row_length(self, row_length: int) -> None:
        self._row_length = row_length
        self._packer.set_row_length(row_length)

    def stage_counts(self, before: dict[str, int]) -> StageCounts:
        """What happened since `before`, an earlier value of `counts`."""
        return StageCounts(
            row_length=self._row_length,
            waiting_documents=self._packer.waiting,
            waiting_tokens=self._packer.waiting_tokens,
            **{name: count - before[name] for name, count in self.counts.items()},
        )

    def rows(self, rows: int, kept: list[pa.ListArray]) -> Iterator[pa.ListArray]:
        """Exactly `rows` rows; the first of them are `kept`, rows of an earlier plan."""
        for pieces in kept:
            self._replay(pieces)
            yield pieces
            rows -= len(pieces)
        waiting_in_vain = 0
        while rows:
            self._fill(waiting_in_vain + rows * self._row_length)
            offsets, document, start, length = self._packer.pack(rows)
            found = len(offsets) - 1
            if not found and self._packer.waiting >= self._config.window:
                raise MarinError(
                    f"cell {self._cell}: no row of {self._row_length} tokens among "
                    f"{self._packer.waiting} documents reaches min_fill {self._config.min_fill}; "
                    "lower it"
                )
            rows -= found
            # Only min_fill keeps documents that would be enough; then others must join them.
            waiting_in_vain = self._packer.ready_tokens if self._config.min_fill else 0
            if found:
                columns = [pa.array(document), pa.array(start), pa.array(length)]
                pieces = pa.StructArray.from_arrays(columns, fields=list(PIECES.value_type))
                yield pa.ListArray.from_arrays(pa.array(offsets), pieces)

    def _replay(self, pieces: pa.ListArray) -> None:
        """Takes the documents of an earlier plan's rows out of what waits."""
        offsets = pieces.offsets.to_numpy()
        columns = [column.to_numpy() for column in pieces.values.flatten()]
        row = 0
        in_vain = 0
        while row < len(pieces):
            begin = offsets[row]
            taken = self._packer.replay(offsets[row:] - begin, *(c[begin:] for c in columns))
            row += taken
            if row == len(pieces):
                break
            in_vain = 0 if taken else in_vain
            if in_vain > self._config.window + self._epochs_of(
                columns[0][begin : offsets[row + 1]]
            ):
                raise MarinError(
                    f"cell {self._cell}: the earlier plan's rows are not of this schedule's "
                    "documents; plan without it"
                )
            # A few at a time: what is fetched too early would be packed too early.
            count = min(_FETCH, int(offsets[-1] - offsets[row]) // 8 + 1)
            self._fetch(count, _NO_LIMIT)
            in_vain += count

    def _epochs_of(self, documents: NDArray[np.int64]) -> int:
        """Documents among which those of a row come, as many times as the row has each: of a
        small cell, one row may hold many epochs."""
        copies = int(np.unique(documents, return_counts=True)[1].max(initial=0))
        return (copies + 1) * self._tokens.documents

    def _fill(self, enough: int) -> None:
        """Gets documents until a window is full and holds a row, or `enough` tokens wait."""
        packer, window = self._packer, self._config.window
        while packer.ready_tokens < enough and (
            packer.waiting < window or packer.ready_tokens < self._row_length
        ):
            about = int((enough - packer.ready_tokens) / self._mean_length) + 1
            self._fetch(min(_FETCH, max(window - packer.waiting, 1), about), enough)

    def _fetch(self, count: int, enough: int) -> None:
        """Gets the next `count` documents, or fewer once `enough` tokens wait."""
        self._position += self._packer.push_from(
            self._order, self._tokens, self._position, count, enough
        )
