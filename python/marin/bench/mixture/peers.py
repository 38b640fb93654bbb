"""Other mixers: each takes weights and gives the number of rows and a function that orders them.

The function returns the cell of each of the rows, which the mixer reads from sources that only name
their cell, so that what is measured is the order and little else. Keys are distributions.
"""

import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Mixer = Callable[[Sequence[float]], tuple[int, Callable[[], NDArray[np.int64]]]]

_MANY = 10**9
"""Rows of each source: more than a run reads."""


def grain(weights: Sequence[float]) -> tuple[int, Callable[[], NDArray[np.int64]]]:
    import grain as library

    count = 50_000
    parts = [library.MapDataset.source(_Constant(cell)) for cell in range(len(weights))]
    mixed = library.MapDataset.mix(parts, list(weights))
    return count, lambda: np.array([mixed[row] for row in range(count)], np.int64)


class _Constant:
    """A source whose every element is its own number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __len__(self) -> int:
        return _MANY

    def __getitem__(self, index: int) -> int:
        return self._number


def megatron(weights: Sequence[float]) -> tuple[int, Callable[[], NDArray[np.int64]]]:
    # The module is loaded by its path: importing the package would need torch.
    distribution = importlib.metadata.distribution("megatron-core")
    path = next(f for f in distribution.files or () if "helpers_cpp" in f.name)
    spec = importlib.util.spec_from_file_location("helpers_cpp", str(path.locate()))
    assert spec is not None
    assert spec.loader is not None
    helpers: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    count = 2_000_000
    exact = np.array(weights, np.float64)

    def order() -> NDArray[np.int64]:
        cells, samples = np.zeros(count, np.int16), np.zeros(count, np.int64)
        helpers.build_blending_indices(cells, samples, exact, len(exact), count, False)
        return cells.astype(np.int64)

    return count, order


def levanter(weights: Sequence[float]) -> tuple[int, Callable[[], NDArray[np.int64]]]:
    from levanter.data import AsyncDataset
    from levanter.data.mixture import MixtureDataset
    from levanter.utils.thread_utils import blocking_wait

    class Constant(AsyncDataset):  # type: ignore[misc, type-arg, unused-ignore]
        def __init__(self, number: int) -> None:
            self._number = number

        async def async_len(self) -> int:
            return _MANY

        def is_finite(self) -> bool:
            return True

        async def get_batch(self, indices: Sequence[int]) -> list[int]:
            return [self._number] * len(indices)

    # Its default block, in which every dataset has the same whole number of rows.
    block, batch, count = 2048, 1024, 1 << 17
    names = [str(cell) for cell in range(len(weights))]
    mixed = MixtureDataset(
        {name: Constant(cell) for cell, name in enumerate(names)},
        dict(zip(names, weights, strict=True)),
        block_size=block,
        key=0,
    )

    def order() -> NDArray[np.int64]:
        batches = [
            blocking_wait(mixed.get_batch(range(first, first + batch)))
            for first in range(0, count, batch)
        ]
        return np.concatenate(batches).astype(np.int64)

    return count, order


def mosaicml(weights: Sequence[float]) -> tuple[int, Callable[[], NDArray[np.int64]]]:
    from streaming import MDSWriter, Stream, StreamingDataset

    count, samples = 1 << 17, 64
    folder = tempfile.TemporaryDirectory()
    streams = []
    for cell, weight in enumerate(weights):
        path = Path(folder.name) / str(cell)
        with MDSWriter(out=str(path), columns={"cell": "int"}) as writer:
            for _ in range(samples):
                writer.write({"cell": cell})
        streams.append(Stream(local=str(path), proportion=weight))
    dataset = StreamingDataset(
        streams=streams, epoch_size=count, shuffle=True, batch_size=32, num_canonical_nodes=1
    )

    def order(samples: object = folder) -> NDArray[np.int64]:  # keeps the folder for as long
        return np.fromiter((sample["cell"] for sample in dataset), np.int64, count)

    return count, order


PEERS: Mapping[str, Mixer] = {
    "marin-levanter": levanter,
    "grain": grain,
    "megatron-core": megatron,
    "mosaicml-streaming": mosaicml,
}
