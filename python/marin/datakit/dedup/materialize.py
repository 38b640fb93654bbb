"""Writes the documents that stay."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from marin.datakit.dedup.inputs import DocumentFile, find_files, read_sidecars, row_groups
from marin.engine import (
    Progress,
    Silent,
    atomic_file,
    stage_directory,
)
from marin.errors import MarinError

STAGE = "materialize"


def materialize(
    inputs: Sequence[Path], sidecars: Path, directory: Path, *, progress: Progress | None = None
) -> Path:
    """Writes the kept documents of `inputs`, all columns, to files of the same names.

    `sidecars` is a finished directory of `dedup` over the same inputs. A file that is already there
    in full is not written again.

    Raises:
      MarinError: the sidecars are of other inputs, or `directory` is one of them.
    """
    progress = progress or Silent()
    files = find_files(inputs)
    manifest = read_sidecars(sidecars, files, inputs)
    for source in (*inputs, sidecars):
        if (
            directory.resolve() == source.resolve()
            or source.resolve() in directory.resolve().parents
        ):
            raise MarinError(f"{directory}: would lie in {source}; choose another directory")
    rows = {}
    with stage_directory(
        directory.parent, STAGE, {}, {"sidecars": manifest.fingerprint}, directory=directory
    ) as stage:
        if stage.finished:
            return stage.path
        with progress.task("Write kept documents", total=len(files)) as task:
            for file in files:
                rows[file.name] = _write(file, sidecars / file.name, stage.path / file.name)
                task.advance(1)
        stage.finish(rows)
        return stage.path


def _write(file: DocumentFile, sidecar: Path, out: Path) -> int:
    """Returns the number of documents written."""
    kept: pa.ChunkedArray = pq.read_table(sidecar, columns=["keep"])["keep"]
    schema = file.metadata.schema.to_arrow_schema()
    out.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with (
        atomic_file(out) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd") as writer,
    ):
        for group in row_groups([file]):
            for first, batch in group.batches(schema.names):
                mask = kept.slice(first - file.first, batch.num_rows).combine_chunks()
                table = pa.table(batch.filter(mask))
                count += table.num_rows
                writer.write_table(table.cast(schema))
    return count
