"""Small stores and schedules."""

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from marin._native import xxh3_bytes
from marin.bench.holes import sparse_file
from marin.engine import write_manifest
from marin.mixture import Phase, Schedule, Specification, Stage

TOKENIZER = {"hash": "tokenizer-1", "vocab_size": 50_000, "bos": 0, "eos": 1}


def write_store(
    root: Path,
    lengths: dict[str, list[int]],
    *,
    rows_per_batch: int = 7,
    files: int = 2,
    tokenizer: Mapping[str, Any] = TOKENIZER,
) -> Path:
    """A store whose token `i` of document `d` of the `c`-th cell is a hash of (c, d, i)."""
    directory = root / "store"
    rows = {}
    for number, (cell, counts) in enumerate(lengths.items()):
        (directory / cell).mkdir(parents=True, exist_ok=True)
        bounds = np.linspace(0, len(counts), files + 1).astype(int)
        for part, (begin, end) in enumerate(pairwise(bounds)):
            name = f"{cell}/part-{part:05d}.arrow"
            table = pa.table(
                {
                    "id": pa.array([f"{cell}-{d}" for d in range(begin, end)], pa.string()),
                    "source": pa.array(["test"] * (end - begin), pa.string()),
                    "tokens": pa.array(
                        [document_tokens(number, d, counts[d]) for d in range(begin, end)],
                        pa.large_list(pa.uint32()),
                    ),
                }
            )
            with pa.ipc.new_file(directory / name, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows_per_batch)
            rows[name] = int(end - begin)
    return _finish_store(directory, lengths, rows, tokenizer)


def _finish_store(
    directory: Path,
    lengths: Mapping[str, Any],
    rows: dict[str, int],
    tokenizer: Mapping[str, Any] = TOKENIZER,
    lengths_of_files: Mapping[str, str] = {},
) -> Path:
    cells = {
        cell: {"documents": len(counts), "tokens": int(np.sum(counts))}
        for cell, counts in lengths.items()
    }
    summary = {"cells": cells, "tokenizer": dict(tokenizer), "domains": []}
    summary["lengths"] = dict(lengths_of_files)
    write_manifest(directory, "store", parameters={}, inputs={}, rows=rows, summary=summary)
    return directory


def document_tokens(cell: int, document: int, length: int) -> np.ndarray:
    start = (int(cell) * 7919 + document * 104_729) % 49_999
    return ((start + np.arange(length, dtype=np.int64) * 31) % 49_999 + 1).astype(np.uint32)


def make_schedule(
    weights: dict[str, float], stages: list[tuple[float, int, int]], tokens: int, seed: int = 0
) -> Schedule:
    """One phase over cells that never run out; `stages` are (start, row length, batch size)."""
    specification = Specification(
        name="test",
        phases=(Phase("main", tokens, weights),),
        available_tokens=dict.fromkeys(weights, tokens),
    )
    return Schedule.of(specification, [Stage(*stage) for stage in stages], seed=seed)


def write_sparse_store(root: Path, lengths: dict[str, np.ndarray], batches: int = 2) -> Path:
    """A store of any size whose tokens are all zero and take no room on disk."""
    directory = root / "store"
    rows = {}
    known = {}
    for cell, counts in lengths.items():
        (directory / cell).mkdir(parents=True, exist_ok=True)
        name = f"{cell}/part-00000.arrow"
        schema = pa.schema([("tokens", pa.large_list(pa.uint32()))])
        path = directory / name
        with sparse_file(path) as sink, pa.ipc.new_file(sink, schema) as writer:
            for part in np.array_split(counts, batches):
                ends = np.concatenate([[0], np.cumsum(part)]).astype(np.int64)
                # calloc gives zero pages that are never touched.
                values = pa.array(np.zeros(ends[-1], np.uint32))
                tokens = pa.LargeListArray.from_arrays(pa.array(ends), values)
                writer.write_batch(pa.RecordBatch.from_arrays([tokens], schema=schema))
        rows[name] = len(counts)
        known[name] = xxh3_bytes(np.asarray(counts, "<i8").tobytes())
    # Checksums would read what is not there.
    with patch("marin.engine.manifest.xxh3_file", return_value="sparse"):
        return _finish_store(directory, lengths, rows, lengths_of_files=known)
