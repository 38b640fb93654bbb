"""Which documents stand in which row: a plan, made from lengths alone.

For every row-length stage and cell a plan holds exactly the rows that the schedule asks for.
Documents come in the mixture's order; those that a stage did not use are the first of the next
one, so nothing is skipped and nothing is repeated.
"""

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from os import cpu_count
from pathlib import Path

import pyarrow as pa

from marin._native import Packer
from marin.engine import Progress, Silent, atomic_file, stage_directory, write_json
from marin.engine.progress import Task
from marin.errors import MarinError
from marin.mixture import Schedule
from marin.packing.config import PlanConfig
from marin.packing.store import Store

STAGE = "plan"
SCHEDULE_FILE = "schedule.json"
PIECES = pa.list_(
    pa.struct([("document", pa.int64()), ("start", pa.int64()), ("length", pa.int32())])
)
ROWS_SCHEMA = pa.schema([("pieces", PIECES)])

_FETCH = 1 << 16
"""Most documents that are asked of the schedule at once."""


@dataclass(frozen=True)
class StageCounts:
    """What one stage took from one cell. Tokens in = packed + truncated + more that wait."""

    rows: int
    row_length: int
    documents: int
    tokens: int
    packed_tokens: int
    truncated_tokens: int
    cut_documents: int
    empty_documents: int
    waiting_documents: int
    waiting_tokens: int

    @property
    def padding(self) -> int:
        return self.rows * self.row_length - self.packed_tokens


def rows_file(stage: int, cell: str) -> str:
    """Name of the file with the rows of one stage and cell, relative to the plan."""
    return f"rows-{stage:02d}/{cell}.arrow"


def counts_file(cell: str) -> str:
    return f"cells/{cell}.json"


def plan(
    store: Path,
    schedule: Schedule,
    root: Path,
    config: PlanConfig = PlanConfig(),
    *,
    progress: Progress = Silent(),
) -> Path:
    """Plans every row of `schedule` from the documents of `store`; returns the plan's directory.

    Raises:
      MarinError: a cell that the schedule wants rows of is missing or has no tokens, or `min_fill`
        cannot be met.
    """
    opened = Store(store)
    counts = schedule.order.stage_rows
    wanted = {
        cell: [int(rows) for rows in counts[:, number]]
        for number, cell in enumerate(schedule.cells)
        if counts[:, number].any()
    }
    for cell in wanted:
        if cell not in opened.cells or not opened.cells[cell].tokens:
            raise MarinError(
                f"{opened.path}: cell {cell} has no tokens, the schedule wants "
                f"{sum(wanted[cell])} rows of it; use a mixture made for this store"
            )
    bound = schedule.revisions[-1].specification.store
    if bound and bound != opened.manifest.fingerprint:
        raise MarinError(
            f"{opened.path}: store {opened.manifest.fingerprint[:12]}, but the mixture is for "
            f"store {bound[:12]}; use a mixture made for this store"
        )
    parameters = {
        "policy": config.policy,
        "max_segments": config.max_segments,
        "min_fill": config.min_fill,
        "window": config.window,
        "schedule": schedule.fingerprint,
    }
    inputs = {"store": opened.manifest.fingerprint}
    with stage_directory(Path(root), STAGE, parameters, inputs) as stage:
        if not stage.finished:
            write_json(stage.path / SCHEDULE_FILE, schedule.to_json())
            with (
                progress.task("Plan rows", total=int(counts.sum())) as task,
                ThreadPoolExecutor(cpu_count()) as pool,
            ):
                jobs = [
                    pool.submit(_plan_cell, opened, schedule, cell, rows, stage.path, config, task)
                    for cell, rows in wanted.items()
                ]
                by_cell = {cell: job.result() for cell, job in zip(wanted, jobs, strict=True)}
            files = {SCHEDULE_FILE: 1}
            for cell, stages in by_cell.items():
                files[counts_file(cell)] = 1
                files |= {
                    rows_file(number, cell): counts.rows
                    for number, counts in enumerate(stages)
                    if counts.rows
                }
            stage.finish(files, _summary(opened, schedule, by_cell))
    return stage.path


def _plan_cell(
    store: Store,
    schedule: Schedule,
    cell: str,
    wanted: list[int],
    directory: Path,
    config: PlanConfig,
    task: Task,
) -> list[StageCounts]:
    """Writes the rows of all stages of a cell, unless they are there, and then its counts."""
    done = directory / counts_file(cell)
    files = [directory / rows_file(stage, cell) for stage, rows in enumerate(wanted) if rows]
    if done.is_file() and all(path.is_file() for path in files):
        task.advance(sum(wanted))
        return [StageCounts(**counts) for counts in json.loads(done.read_text())]
    source = _Documents(store, schedule, cell, config, schedule.row_stages[0].seq_len)
    stages = []
    for stage, rows in enumerate(wanted):
        path = directory / rows_file(stage, cell)
        stages.append(source.take(rows, schedule.row_stages[stage].seq_len, path, task))
    done.parent.mkdir(exist_ok=True)
    write_json(done, [asdict(counts) for counts in stages])
    return stages


class _Documents:
    """The documents of one cell on their way into rows, through all stages."""

    def __init__(
        self, store: Store, schedule: Schedule, cell: str, config: PlanConfig, row_length: int
    ) -> None:
        self._cell = cell
        self._schedule = schedule
        self._config = config
        self._tokens = store.cell(cell)
        self._position = 0
        self._mean_length = store.cells[cell].tokens / store.cells[cell].documents
        self._packer = Packer(config.policy, config.segment_limit, config.min_fill, row_length)

    def take(self, rows: int, row_length: int, path: Path, task: Task) -> StageCounts:
        """Packs exactly `rows` rows and writes them to `path` (nothing if there are none)."""
        before = self._packer.counts
        self._packer.set_row_length(row_length)
        if rows:
            path.parent.mkdir(exist_ok=True)
            with (
                atomic_file(path) as partial,
                pa.OSFile(str(partial), "wb") as sink,
                pa.ipc.new_file(sink, ROWS_SCHEMA) as writer,
            ):
                for pieces in self._windows(rows, row_length):
                    batch = pa.RecordBatch.from_arrays([pieces], schema=ROWS_SCHEMA)
                    writer.write_batch(batch)
                    task.advance(len(pieces))
        after = self._packer.counts
        taken = {name: after[name] - before[name] for name in after}
        return StageCounts(
            row_length=row_length,
            waiting_documents=self._packer.waiting,
            waiting_tokens=self._packer.waiting_tokens,
            **taken,
        )

    def _windows(self, rows: int, row_length: int) -> Iterable[pa.ListArray]:
        waiting_in_vain = 0
        while rows:
            self._fill(waiting_in_vain + rows * row_length, row_length)
            offsets, document, start, length = self._packer.pack(rows)
            found = len(offsets) - 1
            if not found and self._packer.waiting >= self._config.window:
                raise MarinError(
                    f"cell {self._cell}: no row of {row_length} tokens among "
                    f"{self._packer.waiting} documents reaches min_fill {self._config.min_fill}; "
                    "lower it"
                )
            rows -= found
            # Only min_fill keeps documents that would be enough; then others must join them.
            waiting_in_vain = self._packer.ready_tokens if self._config.min_fill else 0
            pieces = pa.StructArray.from_arrays(
                [pa.array(document), pa.array(start), pa.array(length)],
                fields=list(PIECES.value_type),
            )
            if found:
                yield pa.ListArray.from_arrays(pa.array(offsets), pieces)

    def _fill(self, enough: int, row_length: int) -> None:
        """Gets documents until a window is full and holds a row, or `enough` tokens wait."""
        packer, window = self._packer, self._config.window
        while packer.ready_tokens < enough and (
            packer.waiting < window or packer.ready_tokens < row_length
        ):
            about = int((enough - packer.ready_tokens) / self._mean_length) + 1
            count = min(_FETCH, max(window - packer.waiting, 1), about)
            documents, _ = self._schedule.order.documents(
                self._cell, self._tokens.documents, self._position, count, self._schedule.share
            )
            taken = packer.push(documents, self._tokens.lengths(documents), enough)
            self._position += taken


def _summary(
    store: Store, schedule: Schedule, by_cell: dict[str, list[StageCounts]]
) -> dict[str, object]:
    stages = [
        {
            "row_length": stage.seq_len,
            "rows": stage.rows,
            "tokens": sum(counts[number].packed_tokens for counts in by_cell.values()),
            "padding": sum(counts[number].padding for counts in by_cell.values()),
        }
        for number, stage in enumerate(schedule.row_stages)
    ]
    every = [counts for stages in by_cell.values() for counts in stages]
    last = [stages[-1] for stages in by_cell.values()]
    return {
        "store": str(store.path.resolve()),
        "tokenizer": store.tokenizer_hash,
        "cells": list(schedule.cells),
        "runs": [[run.steps, run.batch_size, run.seq_len] for run in schedule.runs],
        "stages": stages,
        "rows": sum(counts.rows for counts in every),
        "tokens": sum(counts.packed_tokens for counts in every),
        "padding": sum(counts.padding for counts in every),
        "documents": sum(counts.documents for counts in every),
        "cut_documents": sum(counts.cut_documents for counts in every),
        "truncated_tokens": sum(counts.truncated_tokens for counts in every),
        "unused_documents": sum(counts.waiting_documents for counts in last),
        "unused_tokens": sum(counts.waiting_tokens for counts in last),
    }
