"""Writes the documents that stay."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from marin.datakit.dedup.inputs import DocumentFile, find_files, read_sidecars, row_groups
from marin.datakit.dedup.locations import Place, lies_in
from marin.engine import Progress, Silent, atomic_file, stage_directory
from marin.errors import MarinError

STAGE = "materialize"


def materialize(
    inputs: Sequence[Place], sidecars: Path, directory: Path, *, progress: Progress | None = None
) -> Path:
    """Writes the kept documents of `inputs`, all columns, to files of the same names.

    `sidecars` is a finished directory of `dedup` over the same inputs; ids that were made there
    become the documents' own.

    Raises:
      MarinError: the sidecars are of other inputs, or `directory` is one of them.
    """
    progress = progress or Silent()
    files = find_files(inputs, make_ids=True)
    manifest = read_sidecars(sidecars, files, inputs)
    for source in (*inputs, sidecars):
        if lies_in(directory, source):
            raise MarinError(f"{directory}: would lie in {source}; choose another directory")
    rows = {}
    with stage_directory(
        directory.parent,
        STAGE,
        {},
        {"sidecars": manifest.fingerprint},
        directory=directory,
        makes=[file.name for file in files],
    ) as stage:
        if stage.finished:
            return stage.path
        with progress.task("Write kept documents", total=len(files)) as task:
            for file in files:
                rows[file.name] = _write(
                    file,
                    sidecars / file.name,
                    stage.path / file.name,
                    made_ids=bool(manifest.parameters["make_ids"]),
                )
                task.advance(1)
        stage.finish(rows)
        return stage.path


def _write(file: DocumentFile, sidecar: Path, out: Path, *, made_ids: bool) -> int:
    """Returns the number of documents written."""
    decisions = pq.read_table(sidecar, columns=["id", "keep"])
    schema = found = file.metadata.schema.to_arrow_schema()
    if made_ids:
        others = [field for field in found if field.name != "id"]
        schema = pa.schema([decisions.schema.field("id"), *others], found.metadata)
    out.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with (
        atomic_file(out) as partial,
        pq.ParquetWriter(partial, schema, compression="zstd") as writer,
    ):
        for group in row_groups([file]):
            for first, batch in group.batches(found.names):
                decided = decisions.slice(first - file.first, batch.num_rows)
                columns = dict(zip(found.names, batch.columns, strict=True))
                if made_ids:
                    columns["id"] = decided["id"]
                table = pa.table(columns).select(schema.names).filter(decided["keep"])
                count += table.num_rows
                writer.write_table(table.cast(schema))
    return count
