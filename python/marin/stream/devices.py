"""Batches as global JAX arrays, on the devices before they are asked for."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Bool, Int32, UInt16

from marin.stream.batch import Batch
from marin.stream.stream import Stream

_AHEAD = 1


class DeviceBatch(NamedTuple):
    """A global batch of B rows of L tokens; every process holds the rows it has read.

    The arrays mean what those of `Batch` mean; `first_row` is the batch's first row in the run.
    """

    step: int
    first_row: int
    tokens: Int32[jax.Array, "B L"]
    segment_ids: Int32[jax.Array, "B L"]
    positions: Int32[jax.Array, "B L"]
    loss_mask: Bool[jax.Array, "B L"]
    cells: UInt16[jax.Array, "B"]


def to_devices(
    stream: Stream,
    mesh: Mesh,
    axes: Sequence[str] | None = None,
    *,
    start: int | None = None,
    ahead: int = _AHEAD,
) -> Iterator[DeviceBatch]:
    """Batches from step `start` (default: the stream's cursor) on, rows spread over `axes`.

    While one batch is worked on, the next `ahead` are on their way to the devices, and those after
    them are read. In a job of several processes the stream's reader must be
    `(jax.process_index(), jax.process_count())`, and its slices those that `axes` give the process.

    Args:
      axes: names of the mesh's axes over which rows are spread; all of them by default.
    """
    sharding = NamedSharding(mesh, PartitionSpec(tuple(axes or mesh.axis_names)))
    waiting: deque[DeviceBatch] = deque()
    for batch in stream.iterate(start):
        waiting.append(_lay_out(batch, stream, sharding))
        if len(waiting) > ahead:
            yield waiting.popleft()
    yield from waiting


def _lay_out(batch: Batch, stream: Stream, sharding: NamedSharding) -> DeviceBatch:
    first_row, run = stream.batches.locate(batch.step)

    def spread(array: np.ndarray) -> jax.Array:
        shape = (run.batch_size, *array.shape[1:])
        result: jax.Array = jax.make_array_from_process_local_data(sharding, array, shape)
        return result

    return DeviceBatch(
        step=batch.step,
        first_row=first_row,
        tokens=spread(batch.tokens),
        segment_ids=spread(batch.segment_ids),
        positions=spread(batch.positions),
        loss_mask=spread(batch.loss_mask),
        cells=spread(batch.cells),
    )
