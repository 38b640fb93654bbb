"""A store of millions of documents whose tokens take no room: a plan reads lengths alone."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa

from marin._native import xxh3_bytes
from marin.bench.corpus import lengths
from marin.bench.holes import sparse_file
from marin.engine import FileEntry, read_manifest, write_manifest
from marin.errors import MarinError

CELLS = 10
DOCUMENTS = 400_000
"""Documents of each cell."""
_BATCH = 4096


def build_lengths(root: Path) -> Path:
    """Writes the store once. Its token values are holes in the files, and read as zeros."""
    store = root / "lengths"
    try:
        read_manifest(store)
        return store
    except MarinError:
        shutil.rmtree(store, ignore_errors=True)
    cells, known, checksums = {}, {}, {}
    for number in range(CELLS):
        cell = f"c{number:02d}q0"
        path = store / cell / "part-00000.arrow"
        path.parent.mkdir(parents=True)
        counts = lengths(DOCUMENTS, number)
        _write(path, counts)
        cells[cell] = {"documents": len(counts), "tokens": int(counts.sum())}
        # A checksum would read gigabytes of holes.
        name = f"{cell}/{path.name}"
        known[name] = FileEntry(name, len(counts), path.stat().st_size, "")
        checksums[name] = xxh3_bytes(counts.astype("<i8").tobytes())
    summary = {"cells": cells, "tokenizer": {"hash": "bench"}, "lengths": checksums, "domains": []}
    rows = {name: entry.rows for name, entry in known.items()}
    write_manifest(
        store, "store", parameters={}, inputs={}, rows=rows, summary=summary, known=known
    )
    return store


def _write(path: Path, counts: np.ndarray) -> None:
    schema = pa.schema([("tokens", pa.large_list(pa.uint32()))])
    longest = max(int(counts[at : at + _BATCH].sum()) for at in range(0, len(counts), _BATCH))
    zeros = pa.array(np.zeros(longest, np.uint32))
    with sparse_file(path) as sink, pa.ipc.new_file(sink, schema) as writer:
        for at in range(0, len(counts), _BATCH):
            ends = np.concatenate([[0], np.cumsum(counts[at : at + _BATCH])]).astype(np.int64)
            tokens = pa.LargeListArray.from_arrays(pa.array(ends), zeros[: int(ends[-1])])
            writer.write_batch(pa.RecordBatch.from_arrays([tokens], schema=schema))
