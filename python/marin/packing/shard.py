"""One shard: rows in an Arrow IPC file, and beside it an index with the checksums of its blocks.

The index says where the buffers of each record batch (block) lie in the file, the xxh3 of each
block and of each row, and of the frame, which is what the file holds outside of its blocks. The
manifest vouches for the index, the index for every byte of the shard.
"""

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marin._native import Shard, checksum_shard
from marin.engine import FileEntry, Writeback, atomic_file
from marin.errors import MALFORMED, MarinError
from marin.packing.config import ShardConfig
from marin.packing.planned import PlannedRows

INDEX_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("tokens_at", pa.int64()),
        ("segment_offsets_at", pa.int64()),
        ("segments_at", pa.int64()),
        ("cells_at", pa.int64()),
        ("xxh3", pa.uint64()),
        ("row_xxh3", pa.large_list(pa.uint64())),
    ]
)
REPAIR = "run marin pack --verify to repair it"
_TABLE = INDEX_SCHEMA.names[:7]


@dataclass(frozen=True)
class ShardPlace:
    """Which rows stand in a shard. Rows are counted through the whole run."""

    number: int
    first_row: int
    rows: int
    row_length: int
    rows_per_block: int

    @property
    def name(self) -> str:
        return f"part-{self.number:05d}.arrow"

    @property
    def index_name(self) -> str:
        return f"index/part-{self.number:05d}.arrow"


class ShardPlaces:
    """The shards of a run whose stages have (rows, row length); none mixes row lengths.

    Where a row stands is found in time independent of the number of shards.
    """

    def __init__(self, stages: Sequence[tuple[int, int]], config: ShardConfig) -> None:
        self._stages: list[tuple[int, int, int, int, int]] = []
        self._first_rows: list[int] = []
        row = number = 0
        for rows, row_length in stages:
            rows_per_block = max(1, config.block_tokens // row_length)
            blocks = max(1, config.shard_tokens // (rows_per_block * row_length))
            rows_per_shard = rows_per_block * blocks
            self._stages.append((rows, row_length, rows_per_block, rows_per_shard, number))
            self._first_rows.append(row)
            row += rows
            number += -(-rows // rows_per_shard)

    def of(self, row: int) -> ShardPlace:
        """The shard of a row of the run."""
        at = bisect_right(self._first_rows, row) - 1
        rows, row_length, rows_per_block, rows_per_shard, number = self._stages[at]
        shard = (row - self._first_rows[at]) // rows_per_shard
        start = shard * rows_per_shard
        count = min(rows_per_shard, rows - start)
        first = self._first_rows[at] + start
        return ShardPlace(number + shard, first, count, row_length, rows_per_block)

    def __iter__(self) -> Iterator[ShardPlace]:
        for first, (rows, _, _, rows_per_shard, _) in zip(
            self._first_rows, self._stages, strict=True
        ):
            for start in range(0, rows, rows_per_shard):
                yield self.of(first + start)


def shard_schema(row_length: int, cells: Sequence[str], documents: bool) -> pa.Schema:
    fields = [
        pa.field("tokens", pa.list_(pa.int32(), row_length), nullable=False),
        pa.field("segments", pa.list_(pa.int32()), nullable=False),
        pa.field("cell", pa.uint16(), nullable=False),
    ]
    if documents:
        fields.append(pa.field("documents", pa.list_(pa.string()), nullable=False))
    return pa.schema(fields, metadata={"cells": json.dumps(list(cells))})


def write_shard(
    directory: Path, place: ShardPlace, source: PlannedRows, documents: bool
) -> FileEntry:
    """Writes a shard and then its index, each atomically; returns the entry of the shard."""
    schema = shard_schema(place.row_length, source.schedule.cells, documents)
    with atomic_file(directory / place.name) as partial:
        bounds = []
        # Filled again for each record batch: fresh memory costs more than the tokens in it.
        memory = np.empty(min(place.rows, place.rows_per_block) * place.row_length, np.int32)
        writeback = Writeback(partial)
        with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for start in range(0, place.rows, place.rows_per_block):
                count = min(place.rows_per_block, place.rows - start)
                batch = _block(source, place.first_row + start, count, schema, memory)
                begin = sink.tell()
                writer.write_batch(batch)
                bounds.append((begin, sink.tell()))
                writeback.advance(sink.tell())
        index, checksum = index_of(partial, place, bounds)
    write_index(directory / place.index_name, index)
    return _entry(place, index, checksum)


def _block(
    source: PlannedRows, first: int, count: int, schema: pa.Schema, memory: NDArray[np.int32]
) -> pa.RecordBatch:
    """Rows `first..first + count`, whose tokens lie in `memory`."""
    row_length = schema.field("tokens").type.list_size
    tokens = memory[: count * row_length]
    cells, offsets, lengths = source.assemble(first, count, row_length, tokens)
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(tokens), row_length),
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(lengths)),
        pa.array(cells),
    ]
    if "documents" in schema.names:
        columns.append(source.document_ids(first, count, row_length))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def index_of(
    path: Path, place: ShardPlace, bounds: Sequence[tuple[int, int]]
) -> tuple[pa.RecordBatch, str]:
    """The index of a shard whose record batches lie at `bounds` (begin, end), in bytes, and the
    checksum of the file."""
    mapped = pa.memory_map(str(path)).read_buffer()
    reader = pa.ipc.open_file(pa.BufferReader(mapped))
    table = np.zeros((len(bounds), len(_TABLE)), np.int64)
    for number, (begin, end) in enumerate(bounds):
        batch = reader.get_batch(number)
        segments = batch.column("segments").buffers()
        buffers = [
            batch.column("tokens").values.buffers()[1],
            segments[1],
            segments[3],
            batch.column("cell").buffers()[1],
        ]
        at = [buffer.address - mapped.address - begin for buffer in buffers]
        table[number] = [begin, end - begin, batch.num_rows, *at]
    block_xxh3, row_xxh3, frame, checksum = checksum_shard(str(path), place.row_length, table)
    row_ends = np.concatenate([[0], np.cumsum(table[:, 2])])
    columns = [pa.array(np.ascontiguousarray(column)) for column in table.T]
    columns.append(pa.array(block_xxh3))
    columns.append(pa.LargeListArray.from_arrays(pa.array(row_ends), pa.array(row_xxh3)))
    metadata = {
        "frame": f"{frame:016x}",
        "bytes": str(mapped.size),
        "first_row": str(place.first_row),
        "row_length": str(place.row_length),
        "rows_per_block": str(place.rows_per_block),
    }
    schema = INDEX_SCHEMA.with_metadata(metadata)
    return pa.RecordBatch.from_arrays(columns, schema=schema), checksum


def _entry(place: ShardPlace, index: pa.RecordBatch, checksum: str) -> FileEntry:
    return FileEntry(place.name, place.rows, int(index.schema.metadata[b"bytes"]), checksum)


def whole_shard(directory: Path, place: ShardPlace) -> FileEntry | None:
    """The entry of a shard if it is there as its index says; the index is then written again, for
    damage to it that the comparison cannot see."""
    try:
        index = _read_index(directory / place.index_name)
        bounds = [
            (offset, offset + size)
            for offset, size in zip(
                index["offset"].to_pylist(), index["bytes"].to_pylist(), strict=True
            )
        ]
        found, checksum = index_of(directory / place.name, place, bounds)
        if not pa.Table.from_batches([found]).equals(index, check_metadata=True):
            return None
    except (OSError, *MALFORMED, pa.ArrowException):
        return None
    write_index(directory / place.index_name, found)
    return _entry(place, found, checksum)


def write_index(path: Path, index: pa.RecordBatch) -> None:
    with (
        atomic_file(path) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        pa.ipc.new_file(sink, index.schema) as writer,
    ):
        writer.write_batch(index)


def _read_index(path: Path) -> pa.Table:
    reader = pa.ipc.open_file(pa.memory_map(str(path)))
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    index = pa.Table.from_batches(batches, reader.schema)
    index.validate(full=True)
    return index


def read_index(directory: Path, place: ShardPlace) -> pa.Table:
    """The index of a shard, which the caller has checked against the manifest.

    Raises:
      MarinError: it cannot be read, or is not the one of `place`.
    """
    path = directory / place.index_name
    try:
        index = _read_index(path)
        found = tuple(
            int(index.schema.metadata[name])
            for name in (b"first_row", b"row_length", b"rows_per_block", b"bytes")
        )
    except (OSError, *MALFORMED, pa.ArrowException) as error:
        raise MarinError(f"{path}: not a readable index ({error}); {REPAIR}") from None
    if found[:3] != (place.first_row, place.row_length, place.rows_per_block):
        raise MarinError(f"{path}: the index of other rows; {REPAIR}")
    return index


def shard_ranges(index: pa.Table) -> tuple[int, list[tuple[int, int]], list[tuple[int, int]]]:
    """Bytes of a shard, and the ranges (begin, end) of its frame and of its blocks."""
    size = int(index.schema.metadata[b"bytes"])
    offsets, sizes = (index[name].to_pylist() for name in ("offset", "bytes"))
    blocks = [(offset, offset + block) for offset, block in zip(offsets, sizes, strict=True)]
    return size, [(0, blocks[0][0]), (blocks[-1][1], size)], blocks


def open_shard(directory: Path, place: ShardPlace, index: pa.Table) -> Shard:
    """Opens a shard by its index.

    Raises:
      MarinError: the shard is damaged.
    """
    metadata = index.schema.metadata
    table = np.stack([index.column(name).to_numpy() for name in _TABLE], axis=1)
    try:
        return Shard(
            str(directory / place.name),
            int(metadata[b"bytes"]),
            int(metadata[b"frame"], 16),
            place.row_length,
            place.rows_per_block,
            np.ascontiguousarray(table),
            index.column("xxh3").to_numpy(),
            index.column("row_xxh3").combine_chunks().flatten().to_numpy(),
        )
    except ValueError as error:
        raise MarinError(f"{error}; {REPAIR}") from None
