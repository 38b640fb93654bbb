"""Memory of batches that nobody holds any more is used again.

Fresh memory costs more than filling it: the kernel zeroes each page first.
"""

import sys
from dataclasses import dataclass
from threading import Lock

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RowArrays:
    """Flat arrays of `rows` rows."""

    tokens: NDArray[np.int32]
    segment_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    loss_mask: NDArray[np.bool_]
    cells: NDArray[np.uint16]


class BufferPool:
    """At most `keep` arrays of the size last asked for."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._size = 0
        self._buffers: list[NDArray[np.uint8]] = []
        self._lock = Lock()

    def take(self, rows: int, row_length: int) -> RowArrays:
        """Arrays with arbitrary content. They return to the pool when no view of them is left."""
        tokens = rows * row_length
        buffer = self._free(13 * tokens + 2 * rows)
        words = buffer[: 12 * tokens].view(np.int32)
        return RowArrays(
            tokens=words[:tokens],
            segment_ids=words[tokens : 2 * tokens],
            positions=words[2 * tokens :],
            loss_mask=buffer[12 * tokens + 2 * rows :].view(np.bool_),
            cells=buffer[12 * tokens : 12 * tokens + 2 * rows].view(np.uint16),
        )

    def _free(self, size: int) -> NDArray[np.uint8]:
        with self._lock:
            if size != self._size:
                self._size = size
                self._buffers = []
            for buffer in self._buffers:
                if sys.getrefcount(buffer) <= _HELD_BY_POOL:
                    return buffer
            buffer = np.empty(size, np.uint8)
            if len(self._buffers) < self._keep:
                self._buffers.append(buffer)
            return buffer


def _references_of_a_pool() -> int:
    """What `getrefcount` says, in the loop of `_free`, of an array without other holders.

    Measured, because interpreters differ in how many temporary references they count.
    """
    buffers = [np.empty(1, np.uint8)]
    return next(sys.getrefcount(buffer) for buffer in buffers)


_HELD_BY_POOL = _references_of_a_pool()
