"""Batches on their way to the devices, read and laid out ahead of the step that needs them."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from marin.model import Batch, row_spec
from marin.stream import Batch as HostBatch

_AHEAD = 2  # batches ready before they are asked for


@dataclass(frozen=True)
class ReadyBatch:
    """One global batch laid out over the mesh.

    `first_row` is the first global row that was read here and `next_row` the one after the last;
    of several readers, the one after as many rows for each of them.
    """

    step: int
    batch: Batch
    cells: jax.Array
    first_row: int
    next_row: int


@contextmanager
def feed(
    read: Callable[[int], HostBatch], steps: range, mesh: Mesh, readers: int
) -> Iterator[Iterator[ReadyBatch]]:
    """Reads and lays out the batches of `steps` in a thread, two ahead of the consumer.

    An error of the reader is raised where its batch is asked for.
    """
    ready: queue.Queue[ReadyBatch | BaseException] = queue.Queue(_AHEAD)
    stop = threading.Event()

    def produce() -> None:
        try:
            for step in steps:
                _put(ready, lay_out(read(step), mesh, readers), stop)
                if stop.is_set():
                    return
        except BaseException as error:
            _put(ready, error, stop)

    def consume() -> Iterator[ReadyBatch]:
        for _ in steps:
            item = ready.get()
            if isinstance(item, BaseException):
                raise item
            yield item

    thread = threading.Thread(target=produce, name="feed", daemon=True)
    thread.start()
    try:
        yield consume()
    finally:
        stop.set()
        thread.join()


def lay_out(host: HostBatch, mesh: Mesh, readers: int) -> ReadyBatch:
    """Makes the global batch of the rows that each of the `readers` has read."""

    def spread(array: np.ndarray) -> jax.Array:
        sharding = NamedSharding(mesh, row_spec(array.ndim))
        shape = (len(array) * readers, *array.shape[1:])
        laid_out: jax.Array = jax.make_array_from_process_local_data(sharding, array, shape)
        return laid_out

    batch = Batch(
        tokens=spread(host.tokens),
        segment_ids=spread(host.segment_ids),
        positions=spread(host.positions),
        loss_mask=spread(host.loss_mask),
    )
    cells = spread(host.cells.astype(np.int32))
    first, last = int(host.row_ids[0]), int(host.row_ids[-1])
    return ReadyBatch(host.step, batch, cells, first, first + (last + 1 - first) * readers)


def _put(ready: "queue.Queue[Any]", item: Any, stop: threading.Event) -> None:
    while not stop.is_set():
        try:
            ready.put(item, timeout=0.1)
            return
        except queue.Full:
            continue
