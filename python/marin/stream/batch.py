"""A batch, and where batches lie in the run."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt16

from marin.errors import MarinError


@dataclass(frozen=True)
class Batch:
    """Rows of one step; B rows of L tokens, or this reader's part of them.

    segment_ids: 1, 2, ... per document of the row, 0 on padding.
    positions: from 0 in each document.
    loss_mask: True where the next token belongs to the same document; its targets are the tokens
      shifted left by one.
    cells: number of each row's cell.
    """

    step: int
    row_ids: Int64[np.ndarray, "B"]
    tokens: Int32[np.ndarray, "B L"]
    segment_ids: Int32[np.ndarray, "B L"]
    positions: Int32[np.ndarray, "B L"]
    loss_mask: Bool[np.ndarray, "B L"]
    cells: UInt16[np.ndarray, "B"]

    @property
    def seq_len(self) -> int:
        return int(self.tokens.shape[1])


@dataclass(frozen=True)
class BatchRun:
    """Consecutive steps with the same number of rows, all of one length."""

    steps: int
    batch_size: int
    seq_len: int

    @property
    def rows(self) -> int:
        return self.steps * self.batch_size


@dataclass(frozen=True)
class StageRows:
    """Consecutive rows of one length."""

    rows: int
    seq_len: int


class Batches:
    """Runs of batches over all rows: finds any batch in O(log runs)."""

    def __init__(self, runs: Sequence[BatchRun]) -> None:
        self.runs = tuple(run for run in runs if run.steps)
        self._first_step = [0, *accumulate(run.steps for run in self.runs)]
        self._first_row = [0, *accumulate(run.rows for run in self.runs)]

    @property
    def steps(self) -> int:
        return self._first_step[-1]

    @property
    def rows(self) -> int:
        return self._first_row[-1]

    def locate(self, step: int) -> tuple[int, BatchRun]:
        """First row of a batch, and its run.

        Raises:
          MarinError: the run has no such step.
        """
        if not 0 <= step < self.steps:
            raise MarinError(f"step {step} of a run with {self.steps} steps")
        at = bisect_right(self._first_step, step) - 1
        run = self.runs[at]
        return self._first_row[at] + (step - self._first_step[at]) * run.batch_size, run

    def step_of(self, row: int) -> tuple[int, BatchRun]:
        """The step that takes a row, and its run.

        Raises:
          MarinError: the run has no such row.
        """
        if not 0 <= row < self.rows:
            raise MarinError(f"row {row} of a run with {self.rows} rows")
        at = bisect_right(self._first_row, row) - 1
        run = self.runs[at]
        return self._first_step[at] + (row - self._first_row[at]) // run.batch_size, run

    def history(self, step: int) -> tuple[tuple[int, int], ...]:
        """The batches before `step` as runs of (steps, batch size), as a cursor holds them."""
        history: list[tuple[int, int]] = []
        for first, run in zip(self._first_step, self.runs, strict=False):
            steps = min(step - first, run.steps)
            if steps <= 0:
                break
            if history and history[-1][1] == run.batch_size:
                history[-1] = (history[-1][0] + steps, run.batch_size)
            else:
                history.append((steps, run.batch_size))
        return tuple(history)


def cut_into_batches(
    stages: Sequence[StageRows], sizes: Sequence[tuple[int | None, int]]
) -> list[BatchRun]:
    """Cuts the rows of `stages` into batches of `sizes`, runs of (steps, rows).

    Steps may be None in the last run: until the rows end.

    Raises:
      MarinError: a batch would take rows of two lengths, or more rows than there are.
    """
    runs: list[BatchRun] = []
    left = [[stage.rows, stage.seq_len] for stage in stages if stage.rows]
    first_row = 0
    for steps, size in sizes:
        if size < 1 or (steps is not None and steps < 0):
            raise MarinError(f"{steps} steps of {size} rows: expected at least one row")
        while left and (steps is None or steps > 0):
            rows, seq_len = left[0]
            whole = rows // size if steps is None else min(steps, rows // size)
            if not whole:
                raise MarinError(
                    f"batch size {size} at row {first_row}: {rows} rows of {seq_len} tokens are "
                    "left before the row length changes or the run ends; choose a divisor of "
                    f"{rows}"
                )
            runs.append(BatchRun(whole, size, seq_len))
            first_row += whole * size
            left[0][0] -= whole * size
            steps = None if steps is None else steps - whole
            if not left[0][0]:
                left.pop(0)
        if steps:
            raise MarinError(f"{steps} more batches of {size} rows, but the run has {first_row}")
    return runs
