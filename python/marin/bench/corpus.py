"""A store like a real corpus: 128 M tokens in 100,774 documents of 1,274 tokens on average."""

from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marin._native import xxh3_bytes
from marin.engine import read_manifest, write_manifest
from marin.errors import MarinError
from marin.mixture import Phase, Schedule, Specification, Stage

DOCUMENTS = 100_774
MEDIAN, SPREAD = 697, 1.1
"""Lengths are log-normal, as those of web text nearly are; the mean is then 1,274."""
CELLS = 10
VOCABULARY = 50_000
SHARE = 0.98
"""Part of the corpus that the schedule uses, so that no document comes twice."""


def lengths(documents: int, seed: int = 0) -> NDArray[np.int64]:
    generator = np.random.default_rng(seed)
    drawn = generator.lognormal(np.log(MEDIAN), SPREAD, documents)
    return np.maximum(1, drawn).astype(np.int64)


def cell_lengths(documents: int = DOCUMENTS) -> list[NDArray[np.int64]]:
    """Tokens of each document of each cell."""
    return [lengths(documents // CELLS, number) for number in range(CELLS)]


def build_store(root: Path, documents: int = DOCUMENTS) -> Path:
    """Writes the store once for each number of documents."""
    store = root / ("store" if documents == DOCUMENTS else f"store-{documents}")
    try:
        read_manifest(store)
        return store
    except MarinError:
        pass
    generator = np.random.default_rng(1)
    rows, cells, checksums = {}, {}, {}
    for number, counts in enumerate(cell_lengths(documents)):
        ends = np.concatenate([[0], np.cumsum(counts)])
        values = generator.integers(0, VOCABULARY, ends[-1], dtype=np.uint32)
        cell = f"c{number:02d}q0"
        (store / cell).mkdir(parents=True, exist_ok=True)
        table = pa.table(
            {
                "id": pa.array([f"{cell}/{at}" for at in range(len(counts))]),
                "source": pa.array(["bench"] * len(counts)),
                "tokens": pa.LargeListArray.from_arrays(pa.array(ends), pa.array(values)),
            }
        )
        with pa.ipc.new_file(store / cell / "part-00000.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=4096)
        rows[f"{cell}/part-00000.arrow"] = len(counts)
        checksums[f"{cell}/part-00000.arrow"] = xxh3_bytes(counts.astype("<i8").tobytes())
        cells[cell] = {"documents": len(counts), "tokens": int(ends[-1])}
    summary = {"cells": cells, "tokenizer": {"hash": "bench"}, "lengths": checksums, "domains": []}
    write_manifest(store, "store", parameters={}, inputs={}, rows=rows, summary=summary)
    return store


def schedule_for(store: Path, row_length: int, batch_size: int = 32) -> Schedule:
    """One phase over all cells by their size."""
    cells = read_manifest(store).summary["cells"]
    tokens = {name: cell["tokens"] for name, cell in cells.items()}
    total = sum(tokens.values())
    phase = Phase("main", total, {name: count / total for name, count in tokens.items()})
    specification = Specification("bench", (phase,), tokens)
    stages = [Stage(0.0, row_length, batch_size)]
    return Schedule.of(specification, stages, horizon=int(SHARE * total))
