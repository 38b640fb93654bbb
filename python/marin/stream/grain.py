"""The rows of a run for Grain: `grain.MapDataset.source(RowSource(shards)).batch(...)`."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from marin.stream.stream import Stream


class RowSource:
    """A Grain `RandomAccessDataSource`: element `n` is row `n` of the run, one dictionary each.

    Keys: `tokens`, `segment_ids`, `positions`, `loss_mask`, each [L], and `cell`. The order is
    already that of training, so it needs no shuffling. Worker processes open the files themselves.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _stream(self) -> Stream:
        return Stream(self._path)

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path}

    def __len__(self) -> int:
        return self._stream.batches.rows

    def __getitem__(self, row: int) -> dict[str, np.ndarray]:
        batch = self._stream.rows(int(row), 1)
        return {
            "tokens": batch.tokens[0],
            "segment_ids": batch.segment_ids[0],
            "positions": batch.positions[0],
            "loss_mask": batch.loss_mask[0],
            "cell": batch.cells[0],
        }

    def __repr__(self) -> str:
        return f"RowSource({str(self._path)!r})"
