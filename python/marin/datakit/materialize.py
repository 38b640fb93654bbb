"""Applying a sidecar: the documents that it keeps, as a documents directory of their own."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from marin.datakit.parts import kept_rows, parquet_writer, part_names, read_part
from marin.engine import (
    Engine,
    Local,
    Progress,
    Silent,
    atomic_file,
    read_manifest,
    stage_directory,
)


@dataclass(frozen=True)
class _Task:
    documents: Path
    dedup: Path
    part: str
    target: Path


def materialize(
    documents: Path,
    dedup: Path,
    root: Path,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the documents that `dedup` keeps, with all of their columns, under the same file
    names; a part of which nothing is kept is empty.

    Raises:
      MarinError: the sidecar does not have the rows of the documents in their order.
    """
    engine, progress = engine or Local(), progress or Silent()
    manifest = read_manifest(documents)
    inputs = {"documents": manifest.fingerprint, "dedup": read_manifest(dedup).fingerprint}
    parts = part_names(manifest)
    with stage_directory(root, "materialized", {}, inputs) as stage:
        if not stage.finished:
            tasks = [_Task(documents, dedup, part, stage.path / part) for part in parts]
            with progress.task("Materialize", total=len(tasks)) as bar:
                for _ in engine.map(_write, [t for t in tasks if not t.target.exists()]):
                    bar.advance(1)
            rows = {task.part: pq.read_metadata(task.target).num_rows for task in tasks}
            summary = {
                "documents": sum(rows.values()),
                "removed": manifest.rows - sum(rows.values()),
            }
            stage.finish(rows, summary)
    return stage.path


def _write(task: _Task) -> None:
    path = task.documents / task.part
    keep = kept_rows(task.dedup, task.part, read_part(path, ["id"])["id"])
    start = 0
    with (
        pq.ParquetFile(path) as file,
        atomic_file(task.target) as partial,
        parquet_writer(partial, file.schema_arrow) as writer,
    ):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            chosen = table.filter(pa.chunked_array([keep.slice(start, len(table))]))
            start += len(table)
            if len(chosen):
                writer.write_table(chosen, row_group_size=len(chosen))
