"""Signatures of documents as files: what candidates are made from, without the texts.

They carry the work of other processes and machines to the one that decides.

An index of a finished deduplication is the signatures of the documents that it kept. Later corpora
are checked against it without reading its documents again, except those that are candidates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marin._native import DEDUP_NORMALIZATION, DedupSession, dedup_sign
from marin.datakit.dedup.config import DedupConfig
from marin.datakit.dedup.inputs import (
    DocumentFile,
    document_columns,
    find_files,
    for_each_batch,
    open_documents,
    read_sidecars,
    row_groups,
)
from marin.datakit.dedup.locations import Place, absolute, fingerprint_of, time_and_size
from marin.engine import (
    Engine,
    Progress,
    Silent,
    atomic_file,
    read_manifest,
    stage_directory,
)
from marin.errors import MarinError

STAGE = "dedup-index"

_WINDOW_ROWS = 1 << 20
"""Signatures of so many documents, some 300 MB, stay in memory until they are written; more where a
row group has more."""


@dataclass(frozen=True)
class Anchors:
    """The kept documents of one input file of an earlier run: document `first + i` of this run is
    row `rows[i]` (ascending) of `file`; `signatures` has a row for each.
    """

    file: DocumentFile
    rows: np.ndarray
    signatures: Path
    first: int

    def among(self, first: int, count: int) -> tuple[int, np.ndarray]:
        """Documents in rows `first..first + count` of the file: the number of the first, after
        which the others follow, and the row of each among these, uint32."""
        low, high = np.searchsorted(self.rows, [first, first + count])
        return self.first + int(low), self.rows[low:high] - np.uint32(first)


def save_index(
    inputs: Sequence[Place],
    sidecars: Path,
    directory: Path,
    config: DedupConfig | None = None,
    *,
    progress: Progress | None = None,
) -> Path:
    """Writes to `directory` the signatures of the documents that `sidecars`, the result of `dedup`
    over `inputs` with `config`, keeps. The index names the files of `inputs`, which have to stay.

    Raises:
      MarinError: the sidecars are of other inputs or another configuration, or a file of the inputs
        changes meanwhile.
    """
    config, progress = config or DedupConfig(), progress or Silent()
    files = find_files(inputs, make_ids=config.make_ids)
    manifest = read_sidecars(sidecars, files, inputs)
    if manifest.parameters != config.parameters():
        raise MarinError(f"{sidecars}: made with other parameters than this index would have")
    names = dict(zip(signature_names(files), files, strict=True))
    with stage_directory(
        directory.parent,
        STAGE,
        _identity(config),
        {"sidecars": manifest.fingerprint},
        directory=directory,
        makes=list(names),
    ) as stage:
        if not stage.finished:
            rows = {}
            with progress.task("Write index", total=len(files)) as task:
                for name, file in names.items():
                    kept = pq.read_table(sidecars / file.name, columns=["keep"])["keep"].to_numpy()
                    rows[name] = _write(file, kept, stage.path / name, config, config.thread_count)
                    task.advance(1)
            documents = {
                name: {
                    "path": absolute(file.location),
                    "fingerprint": file.fingerprint,
                    "time_and_size": file.time_and_size,
                }
                for name, file in names.items()
            }
            for place in documents.values():
                _check_unchanged(stage.path, place)
            stage.finish(rows, {"documents": documents})
        return stage.path


def open_index(directory: Path, config: DedupConfig, first: int) -> list[Anchors]:
    """The documents of an index, numbered from `first`.

    Raises:
      MarinError: it was made with other shingles, normalization, seed or bands, so that its keys
        would mean nothing here; or a file of its documents is gone or has changed.
    """
    manifest = read_manifest(directory)
    if manifest.stage != STAGE:
        raise MarinError(f"{directory}: a {manifest.stage}, not an index of a deduplication")
    for key, value in _identity(config).items():
        if manifest.parameters.get(key) != value:
            raise MarinError(
                f"{directory}: index of {key} {manifest.parameters.get(key)!r}, this run has "
                f"{value!r}; keys of both cannot be compared"
            )
    anchors = []
    for entry in manifest.files:
        place: dict[str, Any] = manifest.summary["documents"][entry.name]
        _check_unchanged(directory, place)
        file = open_documents(
            place["path"], entry.name, place["fingerprint"], first=0, make_ids=True
        )
        rows = pq.read_table(directory / entry.name, columns=["row"])["row"].to_numpy()
        anchors.append(Anchors(file, rows, directory / entry.name, first))
        first += len(rows)
    return anchors


def _check_unchanged(directory: Path, place: Mapping[str, Any]) -> None:
    """Raises `MarinError` unless a file of an index is the one that it was made from. The file is
    only read if its time of change or size is another."""
    found = time_and_size(place["path"])
    if found is not None and found == place.get("time_and_size"):
        return
    if fingerprint_of(place["path"]) != place["fingerprint"]:
        raise MarinError(
            f"{place['path']}: has changed since the index {directory} was made from it; "
            "deduplicate it again and save a new index"
        )


def add_anchors(session: DedupSession, anchors: Sequence[Anchors]) -> None:
    """Gives the signatures of all anchors to `session`."""
    for anchor in anchors:
        add_signatures(session, anchor.signatures, anchor.first)


def add_signatures(session: DedupSession, path: Path, first: int) -> None:
    """Gives the signatures in `path` to `session`, as those of documents `first..`."""
    with pq.ParquetFile(path) as reader:
        for batch in reader.iter_batches(1 << 16):
            session.add_signed(
                first,
                batch.column("id"),
                batch.column("source"),
                batch.column("kind").to_numpy(),
                batch.column("length").to_numpy(),
                _numbers(batch.column("exact")),
                _numbers(batch.column("keys")),
            )
            first += batch.num_rows


def signature_names(files: Sequence[DocumentFile]) -> list[str]:
    """The name of each one's signature file."""
    return [f"{number:05d}.parquet" for number in range(len(files))]


def sign_files(
    files: Sequence[DocumentFile],
    directory: Path,
    config: DedupConfig,
    engine: Engine,
    progress: Progress,
) -> list[Path]:
    """Signs every document of `files` by tasks of `engine`, one for each file, and returns the
    signature files. Those that a killed run left in `directory` are not made again.
    """
    directory.mkdir(exist_ok=True)
    tasks = [
        _SignTask(
            absolute(file.location), file.name, file.fingerprint, str(directory / name), config
        )
        for name, file in zip(signature_names(files), files, strict=True)
    ]
    with progress.task("Sign documents", total=sum(file.rows for file in files)) as task:
        for rows in engine.map(_sign_file, tasks):
            task.advance(rows)
    return [Path(task.out) for task in tasks]


@dataclass(frozen=True)
class _SignTask:
    location: str
    name: str
    fingerprint: str
    out: str
    config: DedupConfig


def _sign_file(task: _SignTask) -> int:
    out = Path(task.out)
    if out.exists():
        return int(pq.read_metadata(out).num_rows)
    file = open_documents(
        task.location, task.name, task.fingerprint, first=0, make_ids=task.config.make_ids
    )
    # Workers share the cores, which Arrow knows.
    threads = min(task.config.thread_count, pa.cpu_count())
    return _write(file, np.ones(file.rows, bool), out, task.config, threads)


def _identity(config: DedupConfig) -> dict[str, Any]:
    """What must be equal for keys to be comparable."""
    bands, rows = config.bands
    return {
        "normalization": DEDUP_NORMALIZATION,
        "shingle_words": config.shingling.words,
        "shingle_characters": config.shingling.characters,
        "shingle_unit": config.shingling.unit,
        "bands": bands,
        "rows": rows,
        "seed": config.seed,
    }


def _write(
    file: DocumentFile, kept: np.ndarray, out: Path, config: DedupConfig, threads: int
) -> int:
    """Signs the documents for which `kept`, bool[documents], holds; returns how many.

    The row groups that begin in one window of `_WINDOW_ROWS` rows are signed together, then written
    in order: the bytes do not depend on the threads.
    """
    bands, rows = config.bands
    parts: list[tuple[int, pa.RecordBatch]] = []

    def sign(first: int, batch: pa.RecordBatch) -> None:
        row = first - file.first
        mask = pa.array(kept[row : row + batch.num_rows])
        ids, texts, sources = document_columns(file, batch, row)
        if sources is None:
            sources = pa.array([""] * batch.num_rows, pa.string())
        kind, length, exact, keys = dedup_sign(
            texts.filter(mask),
            words=config.shingling.words,
            characters=config.shingling.characters,
            unit=config.shingling.unit,
            bands=bands,
            rows=rows,
            seed=config.seed,
        )
        columns = {
            "row": pa.array(np.arange(row, row + batch.num_rows, dtype=np.uint32)).filter(mask),
            "id": ids.filter(mask),
            "source": sources.filter(mask),
            "kind": pa.array(kind),
            "length": pa.array(length),
            "exact": _fixed(exact),
            "keys": _fixed(keys),
        }
        parts.append((first, pa.record_batch(columns)))

    windows = groupby(row_groups([file]), lambda group: (group.first - file.first) // _WINDOW_ROWS)
    with (
        atomic_file(out) as partial,
        pq.ParquetWriter(partial, _schema(bands), compression="zstd") as writer,
    ):
        for _, groups in windows:
            for_each_batch(list(groups), None, threads, sign)
            parts.sort(key=lambda part: part[0])
            writer.write_table(pa.Table.from_batches([batch for _, batch in parts], writer.schema))
            parts.clear()
    return int(np.count_nonzero(kept))


def _schema(bands: int) -> pa.Schema:
    return pa.schema(
        {
            "row": pa.uint32(),
            "id": pa.string(),
            "source": pa.string(),
            "kind": pa.uint8(),
            "length": pa.uint32(),
            "exact": pa.binary(16),
            "keys": pa.binary(8 * bands),
        }
    )


def _fixed(values: np.ndarray) -> pa.Array:
    """uint64[n, m] as n fixed strings of 8 m bytes, little-endian."""
    size = 8 * values.shape[1]
    data = pa.py_buffer(np.ascontiguousarray(values, "<u8"))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(size), len(values), [None, data])


def _numbers(column: pa.FixedSizeBinaryArray) -> np.ndarray:
    """The inverse of `_fixed`, without a copy."""
    values = np.frombuffer(column.buffers()[1], "<u8").reshape(-1, column.type.byte_width // 8)
    return values[column.offset : column.offset + len(column)]
