"""What packing and streaming need to know of a schedule: the order of rows and of documents."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
UInt16s = NDArray[np.uint16]


class Run(Protocol):
    """Steps of one phase, row length and batch size."""

    @property
    def seq_len(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def steps(self) -> int: ...


class Schedule(Protocol):
    """The part of `marin.mixture.Schedule` that packing reads.

    A stage is a stretch of rows of one length; `counts` has the shape [stages, cells].
    """

    @property
    def cells(self) -> Sequence[str]: ...
    @property
    def seq_lens(self) -> Sequence[int]: ...
    @property
    def runs(self) -> Sequence[Run]: ...
    @property
    def fingerprint(self) -> str: ...

    def counts(self) -> Int64s: ...

    def rows(self, start: int, count: int) -> tuple[UInt16s, UInt16s, Int64s]:
        """Stage, cell and index within both, of the rows from `start` on."""

    def documents(self, cell: int, start: int, count: int) -> Int64s:
        """Documents `start`, `start + 1`, ... of the cell's order; it goes on epoch after epoch."""

    def to_json(self) -> Any: ...


def load_schedule(path: Path) -> Schedule:
    """Reads a schedule as `Schedule.to_json` wrote it."""
    schedule: Schedule = import_module("marin.mixture").Schedule.from_json(path.read_text())
    return schedule
