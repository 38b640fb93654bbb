"""Part files: documents and their sidecars, read and written one row group at a time.

A documents directory and all of its sidecars hold files of the same names with the same rows in
the same order. Documents are written in row groups of bounded text, so a stage that works row
group by row group needs memory for one of them, whatever the corpus holds.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin.engine import Manifest, Progress, StageDir, atomic_file, read_manifest
from marin.errors import MarinError

PART_PATTERN = "part-{:05d}.parquet"
DOCUMENT_FIELDS = (
    pa.field("id", pa.string(), nullable=False),
    pa.field("text", pa.large_string()),
    pa.field("source", pa.string(), nullable=False),
)


def part_names(manifest: Manifest) -> list[str]:
    """The part files of a directory, in order."""
    return sorted(f.name for f in manifest.files if Path(f.name).name.startswith("part-"))


def parquet_writer(path: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer with the settings of every part file: Zstandard, no dictionary for unique text."""
    return pq.ParquetWriter(
        path, schema, compression="zstd", compression_level=1, use_dictionary=["source"]
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


def kept_rows(dedup: Path | None, name: str, ids: pa.Array | pa.ChunkedArray) -> pa.Array | None:
    """The `keep` column of part `name` of a deduplication sidecar; None without one.

    Raises:
      MarinError: the sidecar does not have the rows of `ids` in their order.
    """
    if dedup is None:
        return None
    table = read_part(dedup / name, ["id", "keep"])
    check_same_rows(ids, table["id"], dedup / name)
    return _one_chunk(table["keep"])


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


def write_sidecar(
    stage: StageDir,
    documents: Path,
    columns: Sequence[str],
    schema: pa.Schema,
    transform: Callable[[pa.RecordBatch], pa.RecordBatch],
    *,
    name: str,
    dedup: Path | None = None,
    progress: Progress,
) -> dict[str, int]:
    """Writes one sidecar part per part of `documents`; returns the rows per file.

    `transform` turns a row group of `id` and `columns` into the sidecar's rows. With `dedup`, the
    columns are null where the document was removed. A part that an earlier run finished is kept.
    """
    manifest = read_manifest(documents)
    rows: dict[str, int] = {}
    with progress.task(name, total=manifest.rows) as task:
        for part in part_names(manifest):
            target = stage.path / part
            if not target.exists():
                with atomic_file(target) as partial, parquet_writer(partial, schema) as writer:
                    for batch in kept_groups(documents, part, columns, dedup):
                        writer.write_batch(transform(batch).cast(schema))
                        task.advance(len(batch))
            rows[part] = pq.read_metadata(target).num_rows
    return rows


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
