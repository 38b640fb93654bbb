"""The batches of a run for PyTorch: `DataLoader(BatchDataset(shards), batch_size=None)`."""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import IterableDataset, get_worker_info

from marin.stream.batch import Batch
from marin.stream.cursor import Cursor
from marin.stream.stream import Stream


class BatchDataset(IterableDataset[dict[str, torch.Tensor]]):  # type: ignore[misc, unused-ignore]
    """Batches in the run's order, as dictionaries of tensors with the names of `Batch`'s arrays.

    With several workers each makes every n-th batch, and a `DataLoader` with `batch_size=None`
    takes them in turn, so the order stays. The arguments are those of `Stream`, which every worker
    opens for itself.
    """

    def __init__(
        self,
        path: Path,
        *,
        reader: tuple[int, int] = (0, 1),
        cursor: Cursor | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        self._path = path
        self._reader = reader
        self._cursor = cursor
        self._batch_size = batch_size

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        stream = Stream(
            self._path, reader=self._reader, cursor=self._cursor, batch_size=self._batch_size
        )
        worker = get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        steps = range(stream.start + first, stream.steps, every)
        for batch in stream.read(steps):
            yield _tensors(batch)


def _tensors(batch: Batch) -> dict[str, torch.Tensor]:
    arrays = ("row_ids", "tokens", "segment_ids", "positions", "loss_mask")
    tensors = {name: torch.from_numpy(getattr(batch, name)) for name in arrays}
    # PyTorch can do little with uint16.
    return {**tensors, "cells": torch.from_numpy(batch.cells.astype("int32"))}
