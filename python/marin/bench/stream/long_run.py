"""Shards of a run of more than four billion rows, of which only two are there, full of holes."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from marin.bench.holes import sparse_file
from marin.engine import FileEntry, write_manifest
from marin.packing.config import ShardConfig
from marin.packing.pack import STAGE
from marin.packing.shard import ShardPlace, ShardPlaces, index_of, shard_schema, write_index

ROW_4_BILLION = 1 << 32
_ROWS = ROW_4_BILLION + (1 << 28)
_CELLS = ["c00q0"]


def build_long_run(path: Path, row_length: int, batch_size: int, shard_tokens: int) -> Path:
    """Writes the shards of row 0 and of row 2^32. Each row is one document of zeros, but for the
    first token of a record batch, which is the number of its first row modulo 2^31."""
    config = ShardConfig(shard_tokens)
    (path / "index").mkdir(parents=True)
    places = ShardPlaces([(_ROWS, row_length)], config)
    real = [places.of(0), places.of(ROW_4_BILLION)]
    known = {
        name: FileEntry(name, place.rows, 0, "")
        for place in places
        for name in (place.name, place.index_name)
    }
    rows = {name: entry.rows for name, entry in known.items()}
    for place in real:
        _write(path, place)
        del known[place.index_name]
    stage = {"rows": _ROWS, "row_length": row_length, "tokens": _ROWS * row_length, "padding": 0}
    summary = {
        "cells": _CELLS,
        "history": [],
        "rows": _ROWS,
        "runs": [[_ROWS // batch_size, batch_size, row_length]],
        "stages": [stage],
        "tokenizer": "none",
    }
    parameters = {"shard_tokens": config.shard_tokens, "block_tokens": config.block_tokens}
    inputs = {"plan": "0" * 32}
    write_manifest(
        path, STAGE, parameters=parameters, inputs=inputs, rows=rows, summary=summary, known=known
    )
    return path


def _write(path: Path, place: ShardPlace) -> None:
    schema = shard_schema(place.row_length, _CELLS, False)
    rows = place.rows_per_block
    columns = [
        pa.FixedSizeListArray.from_arrays(
            np.zeros(rows * place.row_length, np.int32), place.row_length
        ),
        pa.ListArray.from_arrays(
            np.arange(rows + 1, dtype=np.int32), np.full(rows, place.row_length, np.int32)
        ),
        pa.array(np.zeros(rows, np.uint16)),
    ]
    bounds = []
    with sparse_file(path / place.name) as sink, pa.ipc.new_file(sink, schema) as writer:
        for first in range(0, place.rows, rows):
            batch = pa.RecordBatch.from_arrays(columns, schema=schema)
            begin = sink.tell()
            writer.write_batch(batch.slice(0, min(rows, place.rows - first)))
            bounds.append((begin, sink.tell()))
    index, _ = index_of(path / place.name, place, bounds)
    tokens_at = index.column("tokens_at").to_numpy()
    with (path / place.name).open("r+b") as file:
        for number, (begin, _) in enumerate(bounds):
            file.seek(begin + int(tokens_at[number]))
            file.write(np.int32((place.first_row + number * rows) % 2**31).tobytes())
    index, _ = index_of(path / place.name, place, bounds)
    write_index(path / place.index_name, index)
