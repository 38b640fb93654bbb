"""Other loaders, on the tokens of the corpus: each gives batches of 32 rows of 4,096 tokens.

Keys are distributions; values are (what is measured, a function that prepares data in a folder and
gives the tokens of one run and the run). Most give tokens alone, already cut into rows; levanter
also packs, mixes and lays batches out on devices, as marin does.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray

from marin.bench.corpus import cell_lengths
from marin.packing.store import Store

ROW = 4096
BATCH = 32
_ROWS = 4096
"""Rows that loaders of tokens alone read."""

Peer = Callable[[Path, Path], tuple[int, Callable[[], None]]]


def _rows(store: Path) -> NDArray[np.int32]:
    """[rows, 4096]: the first tokens of the first cells, documents end to end."""
    del store
    return np.random.default_rng(0).integers(0, 50_000, (_ROWS, ROW), dtype=np.int32)


def levanter(store: Path, root: Path) -> tuple[int, Callable[[], None]]:
    import haliax
    import jax
    from levanter.data.loader import DataLoader
    from levanter.data.mixture import MixtureDataset
    from levanter.data.text.datasets import PackedTokenDataset
    from levanter.store.jagged_array import JaggedArrayStore, PreparedBatch

    batches = 48
    position = haliax.Axis("position", ROW)
    cells = {}
    for number, (cell, counts) in enumerate(zip(Store(store).cells, cell_lengths(), strict=True)):
        # A part of each cell: laying out its documents takes it long.
        counts = counts[:2000]
        tokens = np.random.default_rng(number).integers(1, 50_000, counts.sum(), dtype=np.int32)
        documents = JaggedArrayStore.open(str(root / f"levanter-{cell}"), dtype=np.int32)
        documents.extend(PreparedBatch(tokens, np.cumsum(counts), None))
        cache = SimpleNamespace(jagged_array_tree=lambda held=documents: {"input_ids": held})
        cells[cell] = PackedTokenDataset(cache, position, slice_strategy="left")
    mixed = MixtureDataset(cells, dict.fromkeys(cells, 1.0), block_size=2048, key=0)
    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices("cpu")[:1])
    loader = DataLoader(mixed, BATCH, mesh=mesh, axis_resources={"batch": "data"})

    def read() -> None:
        source = iter(loader)
        for _ in range(batches):
            jax.block_until_ready(next(source).tokens)

    return batches * BATCH * ROW, read


def datasets(store: Path, root: Path) -> tuple[int, Callable[[], None]]:
    import datasets as library

    rows = _rows(store)
    library.Dataset.from_dict({"tokens": list(rows)}).save_to_disk(str(root / "datasets"))
    data = library.load_from_disk(str(root / "datasets")).with_format("numpy")

    def read() -> None:
        for batch in data.iter(BATCH):
            np.asarray(batch["tokens"], np.int32)

    return rows.size, read


def grain(store: Path, root: Path) -> tuple[int, Callable[[], None]]:
    import grain as library

    rows = _rows(store)
    np.save(root / "grain.npy", rows)
    mapped = np.load(root / "grain.npy", mmap_mode="r")
    data = library.MapDataset.source(mapped).batch(BATCH)

    def read() -> None:
        for batch in data.to_iter_dataset():
            np.asarray(batch)

    return rows.size, read


def mosaicml(store: Path, root: Path) -> tuple[int, Callable[[], None]]:
    from streaming import MDSWriter, StreamingDataset

    rows = _rows(store)
    with MDSWriter(out=str(root / "mds"), columns={"tokens": f"ndarray:int32:{ROW}"}) as writer:
        for row in rows:
            writer.write({"tokens": row})
    data = StreamingDataset(local=str(root / "mds"), batch_size=BATCH, shuffle=False)

    def read() -> None:
        waiting = []
        for sample in data:
            waiting.append(sample["tokens"])
            if len(waiting) == BATCH:
                np.stack(waiting)
                waiting.clear()

    return rows.size, read


def litdata(store: Path, root: Path) -> tuple[int, Callable[[], None]]:
    from litdata import StreamingDataset, TokensLoader
    from litdata.streaming.writer import BinaryWriter

    rows = _rows(store)
    folder = root / "litdata"
    writer = BinaryWriter(str(folder), chunk_bytes="64MB", item_loader=TokensLoader(ROW))
    import torch

    for number, row in enumerate(rows):
        writer[number] = torch.from_numpy(row)
    writer.done()
    writer.merge()
    data = StreamingDataset(str(folder), item_loader=TokensLoader(ROW), shuffle=False)

    def read() -> None:
        waiting = []
        for sample in data:
            waiting.append(sample.numpy())
            if len(waiting) == BATCH:
                np.stack(waiting)
                waiting.clear()

    return rows.size, read


PEERS: Mapping[str, tuple[str, Peer]] = {
    "marin-levanter": ("packing, mixture, segments and device batches", levanter),
    "datasets": ("tokens alone", datasets),
    "grain": ("tokens alone", grain),
    "mosaicml-streaming": ("tokens alone", mosaicml),
    "litdata": ("tokens alone", litdata),
}
