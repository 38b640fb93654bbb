"""Other packers, best fit where they have it, on documents in memory that fit into a row.

Longer documents are left out, so that what a packer loses is its own doing. Keys are distributions.
"""

import contextlib
import io
import itertools
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marin.bench.corpus import VOCABULARY, lengths
from marin.bench.results import Results

_ROW = 4096
_DOCUMENTS = 12_000
_GRAIN_BINS = 32


def _documents() -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Ends of the documents, with a 0 before them, and all tokens."""
    counts = lengths(_DOCUMENTS)
    counts = counts[counts <= _ROW]
    tokens = np.random.default_rng(0).integers(1, VOCABULARY, int(counts.sum()), dtype=np.int32)
    return np.concatenate([[0], np.cumsum(counts)]), tokens


def _report(results: Results, tool: str, real: int, rows: int, kept: int) -> None:
    results.add(tool, "padding of packed documents", 100 - 100 * kept / (rows * _ROW), "%")
    results.add(tool, "tokens lost of packed documents", 100 - 100 * kept / real, "%")


def trl(results: Results) -> None:
    import datasets
    from trl.data_utils import pack_dataset

    ends, tokens = _documents()
    rows = [tokens[a:b] for a, b in itertools.pairwise(ends)]
    dataset = datasets.Dataset.from_dict({"input_ids": rows})
    packed: list[Any] = []

    def work() -> None:
        # A new object, for it would find the old result in its cache.
        datasets.disable_caching()
        with contextlib.redirect_stderr(io.StringIO()):
            packed[:] = [pack_dataset(dataset, _ROW, "bfd")]

    results.rate("trl", "packed tokens", len(tokens), "tokens", work)
    kept = sum(map(len, packed[0]["input_ids"]))
    _report(results, "trl", len(tokens), len(packed[0]), kept)


def grain(results: Results) -> None:
    import grain as library

    ends, tokens = _documents()
    rows = [{"tokens": tokens[a:b]} for a, b in itertools.pairwise(ends)]
    found = [0, 0]

    def work() -> None:
        packed = library.experimental.BestFitPackIterDataset(
            library.MapDataset.source(rows).to_iter_dataset(),
            length_struct={"tokens": _ROW},
            num_packing_bins=_GRAIN_BINS,
        )
        found[:] = [0, 0]
        for row in packed:
            found[0] += 1
            found[1] += int(np.count_nonzero(row["tokens_segment_ids"]))

    results.rate("grain", "packed tokens", len(tokens), "tokens", work)
    _report(results, "grain", len(tokens), found[0], found[1])


def levanter(results: Results) -> None:
    from levanter.data.packing import GreedyPrepackedDataset
    from levanter.store.jagged_array import JaggedArrayStore, PreparedBatch
    from levanter.utils.thread_utils import blocking_wait

    ends, tokens = _documents()
    with tempfile.TemporaryDirectory() as name:
        store = JaggedArrayStore.open(str(Path(name) / "documents"), dtype=np.int32)
        store.extend(PreparedBatch(tokens, ends[1:], None))
        found = [0, 0]

        def work() -> None:
            packed = GreedyPrepackedDataset(
                {"input_ids": store}, _ROW, max_segments_per_example=64, slice_strategy="left"
            )
            rows = blocking_wait(packed.async_len())
            found[:] = [rows, 0]
            for first in range(0, rows, 32):
                indices = list(range(first, min(first + 32, rows)))
                for _, segments in blocking_wait(packed.get_batch(indices)):
                    found[1] += int((segments["input_ids"] >= 0).sum())

        results.rate("marin-levanter", "packed tokens", len(tokens), "tokens", work)
        _report(results, "marin-levanter", len(tokens), found[0], found[1])


PEERS: Mapping[str, Callable[[Results], None]] = {
    "trl": trl,
    "grain": grain,
    "marin-levanter": levanter,
}
