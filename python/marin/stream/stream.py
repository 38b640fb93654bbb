"""Any batch of a run by its number, and all of them in order."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np

from marin.errors import MarinError
from marin.stream.batch import Batch, Batches, BatchRun, cut_into_batches
from marin.stream.buffers import BufferPool
from marin.stream.cursor import Cursor
from marin.stream.remote import CACHE_BYTES
from marin.stream.sources import Source, open_source, stages_of

_PREFETCH = 2
_KEPT_BUFFERS = 8


class Stream:
    """The batches of a run, from shards or straight from a plan.

    Batch `t` and every row are found in time independent of `t`. Every reader of the same run sees
    its own rows of each global batch: reader `i` of `n` gets rows `B * i // n` to
    `B * (i + 1) // n`. All readers together see each row once, whatever `n` is.

        stream = Stream(shards)
        for batch in stream.iterate(cursor):
            ...
            cursor = stream.cursor(batch.step + 1)

    Args:
      path: shards, or a plan (then rows are assembled from the store), or the URL of shards in an
        object store.
      reader: (index, number of readers).
      cursor: go on from here with the batches that it has seen; later ones are as scheduled, or
        as `batch_size` says.
      batch_size: rows of every batch from the cursor (or the start) on.
      tokenizer: content hash of the tokenizer that the rows must be of.
      store: where the plan's store lies now, if it was moved.
      cache: folder for local copies of shards in an object store; temporary files by default.
      cache_bytes: most bytes of them, of which one shard may always be held.

    Raises:
      MarinError: the directory is unfinished or of another kind, the cursor is of another plan,
        or batches would mix rows of two lengths.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        reader: tuple[int, int] = (0, 1),
        cursor: Cursor | None = None,
        batch_size: int | None = None,
        tokenizer: str | None = None,
        store: Path | None = None,
        cache: Path | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        index, readers = reader
        if not 0 <= index < readers:
            raise MarinError(f"reader {index} of {readers}: expected 0 to {readers - 1}")
        self.path = path
        self.reader = reader
        self._source = open_source(path, store, cache=cache, cache_bytes=cache_bytes)
        summary = self._source.manifest.summary
        scheduled = Batches([BatchRun(*run) for run in summary["runs"]])
        if cursor is not None:
            _check_cursor(cursor, self._source)
        if tokenizer is not None and summary["tokenizer"] != tokenizer:
            raise MarinError(
                f"{self.path}: tokens of tokenizer {summary['tokenizer']}, expected {tokenizer}; "
                "use the tokenizer that the store was made with"
            )
        self.start = 0 if cursor is None else cursor.step
        sizes = _batch_sizes(scheduled, cursor, batch_size)
        self.batches = Batches(cut_into_batches(stages_of(self._source.manifest), sizes))
        self.cells: tuple[str, ...] = tuple(summary["cells"])
        self._buffers = BufferPool(_KEPT_BUFFERS)

    @property
    def plan(self) -> str:
        """Fingerprint of the plan."""
        return self._source.plan

    @property
    def steps(self) -> int:
        return self.batches.steps

    def __len__(self) -> int:
        return self.steps

    def batch(self, step: int) -> Batch:
        """This reader's part of batch `step`."""
        first, run = self.batches.locate(step)
        index, readers = self.reader
        begin = first + run.batch_size * index // readers
        end = first + run.batch_size * (index + 1) // readers
        return self._read(step, begin, end - begin, run.seq_len)

    def rows(self, first: int, count: int) -> Batch:
        """Any consecutive rows of one length, whoever reads them; `step` is that of the first."""
        step, run = self.batches.step_of(first)
        if count < 1 or self.batches.step_of(first + count - 1)[1].seq_len != run.seq_len:
            raise MarinError(
                f"rows {first} to {first + count - 1}: expected at least one row, all of one length"
            )
        return self._read(step, first, count, run.seq_len)

    def _read(self, step: int, first: int, rows: int, seq_len: int) -> Batch:
        arrays = self._buffers.take(rows, seq_len)
        if rows:
            self._source.fill(first, seq_len, arrays)
        shape = (rows, seq_len)
        return Batch(
            step=step,
            row_ids=np.arange(first, first + rows, dtype=np.int64),
            tokens=arrays.tokens.reshape(shape),
            segment_ids=arrays.segment_ids.reshape(shape),
            positions=arrays.positions.reshape(shape),
            loss_mask=arrays.loss_mask.reshape(shape),
            cells=arrays.cells,
        )

    def cursor(self, step: int) -> Cursor:
        """The cursor of a run that has taken the batches before `step`."""
        if not 0 <= step <= self.steps:
            raise MarinError(f"step {step} of a run with {self.steps} steps")
        history = self.batches.history(step)
        next_row = sum(steps * size for steps, size in history)
        return Cursor(self.plan, next_row, step, history)

    def iterate(self, start: int | None = None, *, prefetch: int = _PREFETCH) -> Iterator[Batch]:
        """Batches from step `start` (default: the stream's cursor) to the end.

        The next `prefetch` batches are read by another thread meanwhile; an error in one of them
        comes when it is its turn.
        """
        first = self.start if start is None else start
        return self.read(range(first, self.steps), prefetch=prefetch)

    def read(self, steps: Sequence[int], *, prefetch: int = _PREFETCH) -> Iterator[Batch]:
        """The batches of `steps`, in their order, `prefetch` of them ahead."""
        if prefetch < 1:
            yield from map(self.batch, steps)
            return
        pool = ThreadPoolExecutor(1, thread_name_prefix="marin-stream")
        ahead: deque[Future[Batch]] = deque()
        try:
            for step in steps:
                ahead.append(pool.submit(self.batch, step))
                if len(ahead) > prefetch:
                    yield ahead.popleft().result()
            while ahead:
                yield ahead.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _check_cursor(cursor: Cursor, source: Source) -> None:
    """A cursor fits the plan it is of, and revisions of that plan that begin after it."""
    kept: dict[str, int] = dict(source.manifest.summary["history"])
    kept[source.plan] = source.manifest.summary["rows"]
    if cursor.next_row > kept.get(cursor.plan, -1):
        raise MarinError(
            f"cursor of plan {cursor.plan[:12]} at row {cursor.next_row}, but the rows are of plan "
            f"{source.plan[:12]}, which keeps {kept.get(cursor.plan, 0)} rows of that plan; use "
            "the shards that the run began with"
        )


def _batch_sizes(
    scheduled: Batches, cursor: Cursor | None, batch_size: int | None
) -> Sequence[tuple[int | None, int]]:
    """Runs of (steps, batch size) over all rows: those of the cursor, then those to come."""
    past = () if cursor is None else cursor.batches
    if batch_size is not None:
        return [*past, (None, batch_size)]
    taken = 0 if cursor is None else cursor.next_row
    future = []
    for run in scheduled.runs:
        skipped = min(taken, run.rows)
        taken -= skipped
        left = run.rows - skipped
        if left % run.batch_size:
            raise MarinError(
                f"row {cursor.next_row if cursor else 0}: {left} rows are left of a run of "
                f"batches of {run.batch_size}; give the batch size to go on with"
            )
        if left:
            future.append((left // run.batch_size, run.batch_size))
    return [*past, *future]
