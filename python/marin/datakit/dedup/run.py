"""Deduplication of document directories into one sidecar directory."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marin._native import DedupSession
from marin.datakit.dedup.config import DedupConfig, hit_rate
from marin.datakit.dedup.examples import read_examples
from marin.datakit.dedup.inputs import (
    DocumentFile,
    RowGroup,
    find_files,
    for_each_batch,
    row_groups,
    strings,
)
from marin.engine import Progress, Silent, StageDir, atomic_file, stage_directory
from marin.engine.files import PARTIAL_PREFIX
from marin.errors import MarinError

STAGE = "dedup"
EXAMPLES = 6
_WRITE_ROWS = 1 << 17

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("keep", pa.bool_(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("representative", pa.string()),
        pa.field("similarity", pa.float32()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)


def dedup(
    inputs: Sequence[Path],
    root: Path,
    config: DedupConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Path:
    """Decides for every document whether it stays; returns `root/dedup-<hash>`.

    `inputs` are document directories or Parquet files with the columns `id`, `text` and, if there
    is one, `source`. They are never touched. The directory returned has for each input file a
    sidecar of the same name and row order:

    - `id`; `keep`; `reason`: "", "exact" (the normalized texts are equal) or "fuzzy";
    - `representative`: the kept document that a removed one matches itself, else null;
      `similarity` to it, else null;
    - `cluster`: the id of the kept document of the cluster, which is its own for a kept one.

    The summary in the manifest has `documents`, `kept`, `removed_exact`, `removed_fuzzy`, `empty`,
    `by_source`, `similarity_histogram` ([lower edge, count]), `cluster_sizes` ([size, count]),
    `examples` and the banding with its hit rates. The same inputs and parameters give the same
    bytes, whatever the number of threads, the memory and the order of `inputs`.

    Raises:
      MarinError: an input cannot be read, lacks a column or ids, or has an id twice.
    """
    config, progress = config or DedupConfig(), progress or Silent()
    files = find_files(inputs)
    return _run(
        files, stage_directory(root, STAGE, config.parameters(), _names(files)), config, progress
    )


def dedup_into(
    inputs: Sequence[Path],
    directory: Path,
    config: DedupConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Path:
    """Like `dedup`, with the sidecars in `directory` itself.

    Raises:
      MarinError: as `dedup`; or `directory` is, or lies in, one of `inputs`, or holds a finished
        stage of other inputs or parameters.
    """
    config, progress = config or DedupConfig(), progress or Silent()
    target = directory.resolve()
    for source in inputs:
        if target == source.resolve() or source.resolve() in target.parents:
            raise MarinError(
                f"{directory}: the output would lie in the input {source}; choose another directory"
            )
    files = find_files(inputs)
    parent = stage_directory(
        directory.parent, STAGE, config.parameters(), _names(files), directory=directory
    )
    return _run(files, parent, config, progress)


def _names(files: Sequence[DocumentFile]) -> dict[str, str]:
    return {file.name: file.fingerprint for file in files}


def _run(
    files: Sequence[DocumentFile],
    opened: AbstractContextManager[StageDir],
    config: DedupConfig,
    progress: Progress,
) -> Path:
    with opened as stage:
        if not stage.finished:
            groups = row_groups(files)
            with TemporaryDirectory(prefix=f"{PARTIAL_PREFIX}spill-", dir=stage.path) as spill:
                session = _decide(files, groups, config, Path(spill), progress)
                summary = _summary(session, groups, config)
                _write(session, files, stage.path, progress)
                del session
            stage.finish({file.name: file.rows for file in files}, summary)
        return stage.path


def _decide(
    files: Sequence[DocumentFile],
    groups: Sequence[RowGroup],
    config: DedupConfig,
    spill: Path,
    progress: Progress,
) -> DedupSession:
    documents = sum(file.rows for file in files)
    bands, rows = config.bands
    session = DedupSession(
        documents,
        words=config.shingling.words,
        characters=config.shingling.characters,
        unit=config.shingling.unit,
        bands=bands,
        rows=rows,
        seed=config.seed,
        threshold=config.threshold,
        measure=config.measure,
        priority=list(config.priority),
        exempt=list(config.exempt),
        memory=config.memory_bytes,
        directory=spill,
    )
    threads = config.thread_count
    with progress.task("Read and sign documents", total=documents) as task:

        def sign(first: int, batch: pa.RecordBatch) -> None:
            path = _file_of(files, first).path
            names = batch.schema.names
            columns = {name: strings(batch.column(name), path, name) for name in names}
            if columns["id"].null_count:
                row = first + int(
                    np.argmin(columns["id"].is_valid().to_numpy(zero_copy_only=False))
                )
                raise MarinError(f"{_place(files, row)}: its id is null; every document needs one")
            session.add(first, columns["id"], columns["text"], columns.get("source"))
            task.advance(batch.num_rows)

        for_each_batch(groups, _columns, threads, sign)
    repeated = session.repeated_id()
    if repeated is not None:
        name, first, second = repeated
        raise MarinError(
            f"{_place(files, second)}: id {name!r} again, first at {_place(files, first)}; "
            "ids have to be unique over the corpus"
        )
    needed = session.plan(threads)
    wanted = [group for group in groups if len(_within(needed, group.first, group.rows))]
    with progress.task("Read candidates again", total=len(needed)) as task:

        def collect(first: int, batch: pa.RecordBatch) -> None:
            documents = _within(needed, first, batch.num_rows)
            path = _file_of(files, first).path
            if len(documents):
                session.add_texts(first, documents, strings(batch.column("text"), path, "text"))
            task.advance(len(documents))

        for_each_batch(wanted, lambda _: ["text"], threads, collect)
    session.resolve(threads)
    return session


def _columns(file: DocumentFile) -> list[str]:
    return ["id", "text", "source"] if file.has_source else ["id", "text"]


def _place(files: Sequence[DocumentFile], document: int) -> str:
    file = _file_of(files, document)
    return f"{file.path}, row {document - file.first}"


def _within(documents: np.ndarray, first: int, rows: int) -> np.ndarray:
    low, high = np.searchsorted(documents, [first, first + rows])
    return documents[low:high]


def _file_of(files: Sequence[DocumentFile], document: int) -> DocumentFile:
    return next(file for file in reversed(files) if file.first <= document)


def _summary(
    session: DedupSession, groups: Sequence[RowGroup], config: DedupConfig
) -> dict[str, Any]:
    summary = session.summary()
    by_source = summary["by_source"]
    totals = {
        name: sum(row[name] for row in by_source)
        for name in ("documents", "empty", "short", "removed_exact", "removed_fuzzy")
    }
    bands, rows = config.bands
    near = [round(config.threshold + step / 100, 2) for step in range(-30, 31, 5)]
    return {
        **summary,
        **totals,
        "similarity_histogram": [
            [edge, count]
            for edge, count in summary["similarity_histogram"]
            if edge + 0.02 > config.threshold
        ],
        "kept": totals["documents"] - totals["removed_exact"] - totals["removed_fuzzy"],
        "examples": read_examples(session.examples(EXAMPLES), groups),
        "hit_rates": [[s, round(hit_rate(s, bands, rows), 6)] for s in near if 0 < s <= 1],
    }


def _write(
    session: DedupSession, files: Sequence[DocumentFile], directory: Path, progress: Progress
) -> None:
    with progress.task("Write sidecars", total=len(files)) as task:
        for file in files:
            path = directory / file.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with (
                atomic_file(path) as partial,
                pq.ParquetWriter(partial, SCHEMA, compression="zstd") as writer,
            ):
                for start in range(0, file.rows, _WRITE_ROWS):
                    count = min(_WRITE_ROWS, file.rows - start)
                    columns = [pa.array(c) for c in session.rows(file.first + start, count)]
                    writer.write_batch(pa.record_batch(columns, schema=SCHEMA))
            task.advance(1)
