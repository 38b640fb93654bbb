"""Deduplication of document directories into one sidecar directory."""

import shutil
from bisect import bisect_right
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin._native import DedupSession
from marin.datakit.dedup.config import DedupConfig, expected_misses, hit_rate
from marin.datakit.dedup.earlier import Earlier, read_earlier
from marin.datakit.dedup.examples import Pair, read_examples
from marin.datakit.dedup.inputs import (
    INDEX,
    REMOVED,
    SIGNATURES,
    DocumentFile,
    RowGroup,
    document_columns,
    find_files,
    for_each_batch,
    row_groups,
    strings,
    valid_strings,
)
from marin.datakit.dedup.locations import Place, lies_in
from marin.datakit.dedup.signatures import (
    Anchors,
    add_anchors,
    add_signatures,
    open_index,
    sign_files,
    signature_names,
)
from marin.engine import (
    Engine,
    Local,
    Progress,
    Silent,
    StageDir,
    atomic_file,
    read_manifest,
    stage_directory,
)
from marin.engine.files import PARTIAL_PREFIX
from marin.errors import MarinError

STAGE = "dedup"
EXAMPLES = 20
_WRITE_ROWS = 1 << 17
_LISTED = 8

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
    inputs: Sequence[Place],
    root: Path,
    config: DedupConfig | None = None,
    *,
    against: Sequence[Path] = (),
    removed: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Decides for every document whether it stays; returns `root/dedup-<hash>`.

    `inputs` are document directories or Parquet files, or URLs of such, with the columns `id`,
    `text` and, if there is one, `source`. They are never touched. Documents of the indexes
    `against` (see `save_index`) count as kept, before all others. What the sidecars `removed` (of
    `decontaminate`, say) do not keep takes no part: it is kept neither here nor in place of
    another, and its row says what it said there. Documents are signed by threads of this process,
    or by tasks of `engine`, one for each file. The directory returned has for each input file a
    sidecar of the same name and row order:

    - `id`; `keep`; `reason`: "", "exact" (the normalized texts are equal) or "fuzzy";
    - `representative`: the kept document that a removed one matches itself, else null;
      `similarity` to it, else null;
    - `cluster`: the id of the best kept document of the cluster. For a kept one that is its own,
      unless it is exempt and has a near duplicate.

    The summary in the manifest has `documents`, `kept`, `removed_exact`, `removed_fuzzy` (and so on
    for reasons in `removed`), `empty`, `by_source`, `similarity_histogram` ([lower edge, count]),
    `cluster_sizes` ([size, count]), `examples`, the `hit_rates` of the banding and its
    `expected_misses`. The same inputs and parameters give the same bytes, whatever the number of
    threads, the memory, the engine and the order of `inputs`.

    Raises:
      MarinError: an input cannot be read, lacks a column or ids, or has an id twice, or an id or a
        source is not UTF-8; or `removed` is of other inputs.
    """
    config, progress = config or DedupConfig(), progress or Silent()
    files = find_files(inputs, make_ids=config.make_ids)
    earlier = read_earlier(removed, files)
    names = _names(files, against)
    if earlier.rows:
        names[REMOVED] = earlier.fingerprint
    stage = stage_directory(root, STAGE, config.parameters(), names)
    return _run(files, stage, config, against, earlier, engine, progress)


def dedup_into(
    inputs: Sequence[Place],
    directory: Path,
    config: DedupConfig | None = None,
    *,
    against: Sequence[Path] = (),
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Like `dedup`, with the sidecars in `directory` itself.

    Raises:
      MarinError: as `dedup`; or `directory` is, or lies in, one of `inputs`, or holds a finished
        stage of other inputs or parameters.
    """
    config, progress = config or DedupConfig(), progress or Silent()
    for source in inputs:
        if lies_in(directory, source):
            raise MarinError(
                f"{directory}: the output would lie in the input {source}; choose another directory"
            )
    files = find_files(inputs, make_ids=config.make_ids)
    _check_sources(files, config)
    stage = stage_directory(
        directory.parent,
        STAGE,
        config.parameters(),
        _names(files, against),
        directory=directory,
        makes=[file.name for file in files]
        + [f"{SIGNATURES}/{name}" for name in signature_names(files)],
    )
    return _run(files, stage, config, against, read_earlier(None, files), engine, progress)


def _check_sources(files: Sequence[DocumentFile], config: DedupConfig) -> None:
    """Raises `MarinError` if a source that `config` names is in no document."""
    wanted = {"priority": config.priority, "exempt": config.exempt}
    if not any(wanted.values()):
        return
    found: set[str] = set()

    def collect(first: int, batch: pa.RecordBatch) -> None:
        file = _file_of(files, first)
        sources = valid_strings(batch.column("source"), file.location, "source", first - file.first)
        found.update(name for name in pc.unique(sources).to_pylist() if name)

    groups = [group for group in row_groups(files) if "source" in group.file.columns]
    for_each_batch(groups, ["source"], config.thread_count, collect)
    for option, names in wanted.items():
        for name in names:
            if name not in found:
                raise MarinError(
                    f"--{option}: no document is of the source {name!r}, expected some of "
                    f"{_listed(found)}"
                )


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(sorted(names)[:_LISTED]) or "none, as they have no column `source`"
    return shown + f" and {len(names) - _LISTED} more" * (len(names) > _LISTED)


def _names(files: Sequence[DocumentFile], against: Sequence[Path]) -> dict[str, str]:
    indexes = sorted(read_manifest(index).fingerprint for index in against)
    return {file.name: file.fingerprint for file in files} | {
        INDEX.format(number): fingerprint for number, fingerprint in enumerate(indexes)
    }


def _run(
    files: Sequence[DocumentFile],
    opened: AbstractContextManager[StageDir],
    config: DedupConfig,
    against: Sequence[Path],
    earlier: Earlier,
    engine: Engine | None,
    progress: Progress,
) -> Path:
    with opened as stage:
        if not stage.finished:
            groups, first = row_groups(files), sum(file.rows for file in files)
            anchors: list[Anchors] = []
            for index in sorted(against, key=lambda index: read_manifest(index).fingerprint):
                anchors += open_index(index, config, first + sum(len(a.rows) for a in anchors))
            with TemporaryDirectory(prefix=f"{PARTIAL_PREFIX}spill-", dir=stage.path) as spill:
                session = _decide(
                    files, groups, anchors, config, earlier.mask, engine, Path(spill), progress
                )
                summary = _summary(session, groups, anchors, config, earlier)
                _write(session, files, stage.path, earlier, progress)
                del session
            shutil.rmtree(stage.path / SIGNATURES, ignore_errors=True)
            stage.finish({file.name: file.rows for file in files}, summary)
        return stage.path


def _decide(
    files: Sequence[DocumentFile],
    groups: Sequence[RowGroup],
    anchors: Sequence[Anchors],
    config: DedupConfig,
    left_out: np.ndarray,
    engine: Engine | None,
    spill: Path,
    progress: Progress,
) -> DedupSession:
    documents = sum(file.rows for file in files)
    bands, rows = config.bands
    session = DedupSession(
        documents + sum(len(anchor.rows) for anchor in anchors),
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
        first_anchor=documents,
        memory=config.memory_bytes,
        directory=spill,
        left_out=left_out,
    )
    threads = config.thread_count
    add_anchors(session, anchors)
    if engine is None or engine == Local():
        _sign_here(session, files, groups, threads, progress)
    else:
        signed = sign_files(files, spill.parent / SIGNATURES, config, engine, progress)
        for file, path in zip(files, signed, strict=True):
            add_signatures(session, path, file.first)
    repeated = session.repeated_id()
    if repeated is not None:
        name, first, second = repeated
        remedy = (
            "ids have to be unique over the corpus: change them, or have them made (--make-ids)"
        )
        if config.make_ids:
            remedy = "this is the same file: leave it out"
        raise MarinError(
            f"{_place(files, anchors, second)}: id {name!r} again, first at "
            f"{_place(files, anchors, first)}; {remedy}"
        )
    needed = session.plan(threads)
    arrived = _read_again(session, needed, groups, anchors, threads, progress)
    if not arrived.all():
        raise MarinError(
            f"{_place(files, anchors, int(needed[np.argmin(arrived)]))}: no longer there when its "
            "text was read again; start anew, and leave the files alone meanwhile"
        )
    session.resolve(threads)
    return session


def _sign_here(
    session: DedupSession,
    files: Sequence[DocumentFile],
    groups: Sequence[RowGroup],
    threads: int,
    progress: Progress,
) -> None:
    with progress.task("Read and sign documents", sum(file.rows for file in files)) as task:

        def sign(first: int, batch: pa.RecordBatch) -> None:
            file = _file_of(files, first)
            session.add(first, *document_columns(file, batch, first - file.first))
            task.advance(batch.num_rows)

        for_each_batch(groups, None, threads, sign)


def _read_again(
    session: DedupSession,
    needed: np.ndarray,
    groups: Sequence[RowGroup],
    anchors: Sequence[Anchors],
    threads: int,
    progress: Progress,
) -> np.ndarray:
    """Hands the texts of the documents in `needed`, own ones and anchors, to the session; says for
    each whether it was there, as bool[needed]."""
    arrived = np.zeros(len(needed), bool)
    if len(needed) == 0:
        return arrived
    with progress.task("Read candidates again", total=len(needed)) as task:

        def collect(
            location: str, numbers: np.ndarray, rows: np.ndarray, batch: pa.RecordBatch
        ) -> None:
            if len(numbers):
                session.add_texts(numbers, rows, strings(batch.column("text"), location, "text"))
                arrived[np.searchsorted(needed, numbers)] = True
                task.advance(len(numbers))

        def own(first: int, batch: pa.RecordBatch) -> None:
            numbers = _within(needed, first, batch.num_rows)
            collect("documents", numbers, numbers - np.uint32(first), batch)

        wanted = [group for group in groups if len(_within(needed, group.first, group.rows))]
        for_each_batch(wanted, ["text"], threads, own)
        for anchor in anchors:
            if not len(_within(needed, anchor.first, len(anchor.rows))):
                continue

            def earlier(first: int, batch: pa.RecordBatch, anchor: Anchors = anchor) -> None:
                begin, rows = anchor.among(first, batch.num_rows)
                numbers = _within(needed, begin, len(rows))
                collect(anchor.file.location, numbers, rows[numbers - np.uint32(begin)], batch)

            for_each_batch(row_groups([anchor.file]), ["text"], threads, earlier)
    return arrived


def _place(files: Sequence[DocumentFile], anchors: Sequence[Anchors], document: int) -> str:
    for anchor in reversed(anchors):
        if anchor.first <= document:
            row = anchor.rows[document - anchor.first]
            return f"{anchor.file.location}, row {row}, of the index {anchor.signatures.parent}"
    file = _file_of(files, document)
    return f"{file.location}, row {document - file.first}"


def _within(documents: np.ndarray, first: int, rows: int) -> np.ndarray:
    low, high = np.searchsorted(documents, [first, first + rows])
    return documents[low:high]


def _file_of(files: Sequence[DocumentFile], document: int) -> DocumentFile:
    return files[bisect_right(files, document, key=lambda file: file.first) - 1]


def _summary(
    session: DedupSession,
    groups: Sequence[RowGroup],
    anchors: Sequence[Anchors],
    config: DedupConfig,
    earlier: Earlier,
) -> dict[str, Any]:
    summary = session.summary()
    by_source = summary["by_source"]
    totals = {
        name: sum(row[name] for row in by_source)
        for name in ("documents", "empty", "short", "removed_exact", "removed_fuzzy")
    }
    totals |= {f"removed_{reason}": count for reason, count in earlier.reasons().items()}
    bands, rows = config.bands
    pairs = [Pair(*pair) for pair in session.examples(EXAMPLES)]
    near = [round(config.threshold + step / 100, 2) for step in range(-30, 31, 5)]
    return {
        **summary,
        **totals,
        "similarity_histogram": [
            [edge, count]
            for edge, count in summary["similarity_histogram"]
            if edge + 0.02 >= config.threshold
        ],
        "kept": totals["documents"]
        - sum(count for name, count in totals.items() if name.startswith("removed_")),
        "examples": read_examples(pairs, groups, anchors, config.thread_count),
        "expected_misses": round(expected_misses(config.threshold, bands, rows), 6),
        "hit_rates": [[s, round(hit_rate(s, bands, rows), 6)] for s in near if 0 < s <= 1],
    }


def _write(
    session: DedupSession,
    files: Sequence[DocumentFile],
    directory: Path,
    earlier: Earlier,
    progress: Progress,
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
                    rows = pa.record_batch(columns, schema=SCHEMA)
                    writer.write_batch(earlier.fill(file, start, rows))
            task.advance(1)
