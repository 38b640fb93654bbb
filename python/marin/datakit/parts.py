"""Part files: documents and their sidecars, read and written one row group at a time.

A documents directory and all of its sidecars hold files of the same names with the same rows in
the same order. Documents are written in row groups of bounded text, so a stage that works row
group by row group needs memory for a few of them, whatever the corpus holds.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin.engine import Engine, Manifest, Progress, StageDir, atomic_file, read_manifest
from marin.errors import MarinError

T = TypeVar("T")
R = TypeVar("R")

PART_PATTERN = "part-{:05d}.parquet"
_COUNT_KEY = b"marin.count"


def part_names(manifest: Manifest) -> list[str]:
    """The part files of a directory, in order."""
    return sorted(f.name for f in manifest.files if Path(f.name).name.startswith("part-"))


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer with the settings of every part file: Zstandard, no dictionary for unique text."""
    return pq.ParquetWriter(
        path,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=["source"],
        write_statistics=False,
    )


def read_groups(path: Path, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yields the row groups of a part file, each as one record batch of `columns`.

    Raises:
      MarinError: the file cannot be read or lacks a column.
    """
    try:
        file = pq.ParquetFile(path)
        missing = [name for name in columns if name not in file.schema_arrow.names]
        if missing:
            raise MarinError(
                f"{path}: no column {missing[0]!r}; found {', '.join(file.schema_arrow.names)}"
            )
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=list(columns)).combine_chunks()
            yield from table.select(columns).to_batches()
    except (OSError, pa.ArrowException) as error:
        raise MarinError(f"{path}: cannot be read: {_first_line(error)}") from None


def read_part(path: Path, columns: Sequence[str]) -> pa.Table:
    """A whole part file; for narrow columns such as ids, flags and labels."""
    batches = list(read_groups(path, columns))
    if batches:
        return pa.Table.from_batches(batches).combine_chunks()
    return pq.read_schema(path).empty_table().select(list(columns))


def write_table(path: Path, table: pa.Table) -> None:
    """Writes `table` as one part file, atomically."""
    with atomic_file(path) as partial, parquet_writer(partial, table.schema) as writer:
        writer.write_table(table)


def kept_rows(dedup: Path, name: str, ids: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The `keep` column of part `name` of a deduplication sidecar.

    Raises:
      MarinError: the sidecar does not have the rows of `ids` in their order.
    """
    table = read_part(dedup / name, ["id", "keep"])
    check_same_rows(ids, table["id"], dedup / name)
    return _one_chunk(table["keep"])


def kept_mask(dedup: Path | None, name: str, ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """`kept_rows` as NumPy bool [rows]; all true without a sidecar."""
    if dedup is None:
        return np.ones(len(ids), dtype=bool)
    mask: np.ndarray = kept_rows(dedup, name, ids).to_numpy(zero_copy_only=False)
    return mask


def check_same_rows(
    expected: pa.Array | pa.ChunkedArray, found: pa.Array | pa.ChunkedArray, path: Path
) -> None:
    """Raises `MarinError` naming the first row of sidecar `path` that is another document's."""
    if len(expected) != len(found):
        raise MarinError(
            f"{path}: {len(found)} rows for {len(expected)} documents; run its stage again"
        )
    if len(expected) == 0 or pc.all(pc.equal(expected, found)).as_py():
        return
    row = pc.index(pc.equal(expected, found), False).as_py()
    raise MarinError(
        f"{path}: row {row} is document {found[row]}, expected {expected[row]}; "
        "a sidecar has the rows of the documents in their order"
    )


Transform = Callable[[pa.RecordBatch], pa.RecordBatch]


@dataclass(frozen=True)
class _PartTask:
    documents: Path
    part: str
    columns: tuple[str, ...]
    dedup: Path | None
    target: Path
    schema: pa.Schema
    transform: Transform
    count: str | None
    at_once: int


def write_sidecar(
    stage: StageDir,
    documents: Path,
    columns: Sequence[str],
    schema: pa.Schema,
    transform: Transform,
    *,
    name: str,
    count: str | None = None,
    at_once: int = 1,
    dedup: Path | None = None,
    engine: Engine,
    progress: Progress,
) -> tuple[dict[str, int], int]:
    """Writes one sidecar part per part of `documents`, each a task of `engine`; returns the rows
    per file and the total length of the lists in column `count`.

    `transform`, a function of a module or a partial of one, turns a row group of `id` and `columns`
    into the sidecar's rows, in `at_once` threads, while finished rows are written. With
    `dedup`, the columns are null where the document was removed. A part that an earlier run
    finished is kept.
    """
    parts = part_names(read_manifest(documents))
    tasks = [
        _PartTask(
            documents,
            part,
            tuple(columns),
            dedup,
            stage.path / part,
            schema,
            transform,
            count,
            at_once,
        )
        for part in parts
        if not (stage.path / part).exists()
    ]
    with progress.task(name, total=len(parts)) as bar:
        bar.advance(len(parts) - len(tasks))
        for _ in engine.map(_write_part, tasks):
            bar.advance(1)
    metadata = {part: pq.read_metadata(stage.path / part) for part in parts}
    counted = [int((m.metadata or {}).get(_COUNT_KEY, 0)) for m in metadata.values()]
    return {part: m.num_rows for part, m in metadata.items()}, sum(counted)


def _write_part(task: _PartTask) -> None:
    total = 0
    with (
        atomic_file(task.target) as partial,
        parquet_writer(partial, task.schema) as writer,
    ):
        groups = kept_groups(task.documents, task.part, task.columns, task.dedup)
        for transformed in map_ahead(task.transform, groups, task.at_once):
            rows = transformed.cast(task.schema)
            if task.count is not None:
                total += pc.sum(pc.list_value_length(rows[task.count])).as_py() or 0
            writer.write_batch(rows)
        writer.add_key_value_metadata({_COUNT_KEY: str(total).encode()})


def map_ahead(function: Callable[[T], R], items: Iterable[T], at_once: int) -> Iterator[R]:
    """`map` in order, with `at_once` items in work while the caller uses a result."""
    with ThreadPoolExecutor(at_once) as workers:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(workers.submit(function, item))
            if len(waiting) > at_once:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def kept_groups(
    documents: Path, part: str, columns: Sequence[str], dedup: Path | None
) -> Iterator[pa.RecordBatch]:
    """Row groups of `id` and `columns` of one part, the columns null where `dedup` removed."""
    keep: pa.Array | None = None
    start = 0
    if dedup is not None:
        keep = kept_rows(dedup, part, read_part(documents / part, ["id"])["id"])
    for batch in read_groups(documents / part, ["id", *columns]):
        if keep is None:
            yield batch
            continue
        mask = keep.slice(start, len(batch))
        start += len(batch)
        arrays: list[Any] = [batch["id"]]
        for column in columns:
            values = batch[column]
            arrays.append(pc.if_else(mask, values, pa.scalar(None, values.type)))
        yield pa.record_batch(arrays, names=["id", *columns])


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.chunk(0) if isinstance(combined, pa.ChunkedArray) else combined


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
