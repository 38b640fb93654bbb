"""Ingest: the files of one source to a documents directory.

Files are taken in the order of their places and grouped into shards of about 64 MiB. A shard is
one task: it writes its parts and, last, a small record of what it did, so a killed run goes on
with the shards that are missing. Then ids are made unique and the parts get their final names.
"""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin._native import SeenIds, document_ids
from marin.datakit.parts import PART_PATTERN, parquet_writer, read_part
from marin.datakit.readers import QUARANTINE_SCHEMA, Batch, read_file, read_texts
from marin.datakit.sources import Source, SourceFile, check_apart, check_name, locate
from marin.datakit.walk import printable
from marin.datakit.writer import DocumentWriter
from marin.engine import (
    Engine,
    Local,
    Progress,
    Silent,
    StageDir,
    atomic_file,
    read_manifest,
    stage_directory,
    write_json,
)
from marin.engine.manifest import fingerprint
from marin.errors import MarinError

QUARANTINE = "quarantine.arrow"
_SHARD_BYTES = 64 << 20
# A file's cost beside its bytes, so that many small files make several shards.
_FILE_BYTES = 1 << 12
_BULK_FILES = 512
_BULK_BYTES = 16 << 20
# Quarantined records kept per shard with their excerpt; all are counted.
_QUARANTINED = 10_000
_SHOWN_PROBLEMS = 3
_EXAMPLE_CHARACTERS = 300

_log = logging.getLogger("marin.datakit")


@dataclass(frozen=True)
class _Shard:
    directory: Path
    number: int
    files: tuple[SourceFile, ...]
    source: Source

    @property
    def record(self) -> Path:
        return self.directory / f"shard-{self.number:05d}.json"


def ingest(
    source: Source,
    root: Path,
    *,
    exclude: Sequence[Path] = (),
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the documents directory of `source`: parts, and `quarantine.arrow` (`file`,
    `number`, `reason`, `excerpt`) with what is no document.

    The directory is found again while the listing of the files (place, size, version) is the same.
    A source without documents gives an empty part.

    Raises:
      MarinError: the name or a path is wrong, no file has the text column, a store does not
        answer, or `root` and the source lie in each other.
    """
    engine, progress = engine or Local(), progress or Silent()
    check_name(source.name)
    files, problems = locate(source, (root, *exclude))
    check_apart(root, [source])
    listing = [(f.place, f.format, f.codec, f.size, f.version) for f in files]
    parameters = asdict(source)
    with stage_directory(root, "ingest", parameters, {"files": fingerprint(listing)}) as stage:
        if not stage.finished:
            shards = _shards(files, source, stage.path)
            open_shards = [shard for shard in shards if not shard.record.exists()]
            with progress.task(f"Ingest {source.name}", total=len(shards)) as task:
                task.advance(len(shards) - len(open_shards))
                for _ in engine.map(_ingest_shard, open_shards):
                    task.advance(1)
            records = [json.loads(shard.record.read_text()) for shard in shards]
            _check_columns(source, files, records)
            rows, renamed = _name_parts(stage, records)
            summary = _summary(source, records, problems, renamed) | {"files": len(files)}
            rows[QUARANTINE] = _collect_quarantine(stage, shards, problems)
            stage.finish(rows, summary)
            if summary["documents"] and summary["quarantined"]:
                _log.warning("source %s: %s", source.name, _quarantined(stage.path, summary))
        for leftover in stage.path.glob("shard-*"):
            leftover.unlink()
    return stage.path


def _shards(files: list[SourceFile], source: Source, directory: Path) -> list[_Shard]:
    groups: list[list[SourceFile]] = []
    size = _SHARD_BYTES
    for file in files:
        if size >= _SHARD_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file.size + _FILE_BYTES
    return [_Shard(directory, number, tuple(group), source) for number, group in enumerate(groups)]


def _ingest_shard(shard: _Shard) -> None:
    """Writes `shard-<n>-part-<m>.parquet`, its quarantine, and its record last."""
    counts = {"documents": 0, "bytes": 0, "repaired": 0, "quarantined": 0}
    reasons: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    quarantine: list[pa.Table] = []
    kept = 0
    pattern = f"shard-{shard.number:05d}-part-{{:05d}}.parquet"
    with DocumentWriter(shard.directory, pattern) as writer:
        for files, batch in _batches(shard):
            if len(batch.rejected):
                counts["quarantined"] += len(batch.rejected)
                reasons.update(_kind(reason) for reason in batch.rejected["reason"].to_pylist())
                room = max(_QUARANTINED - kept, 0)
                quarantine.append(_with_files(batch.rejected.slice(0, room), files))
                kept += len(quarantine[-1])
            if len(batch.documents) == 0:
                continue
            table = _identified(batch.documents, shard.source.name)
            writer.write(table)
            counts["documents"] += len(table)
            counts["bytes"] += pc.sum(pc.binary_length(table["text"])).as_py()
            counts["repaired"] += batch.repaired
            for entry in pc.value_counts(table["source"]).to_pylist():
                sources[entry["values"]] += entry["counts"]
    if quarantine:
        table = pa.concat_tables(quarantine).cast(QUARANTINE_SCHEMA)
        with atomic_file(_quarantine_path(shard)) as partial:
            pq.write_table(table, partial, compression="zstd")
    record = {**counts, "reasons": reasons, "sources": sources, "parts": writer.rows}
    write_json(shard.record, record)


def _quarantine_path(shard: _Shard) -> Path:
    return shard.directory / f"shard-{shard.number:05d}-quarantine.parquet"


def _batches(shard: _Shard) -> Iterator[tuple[Sequence[SourceFile], Batch]]:
    """The batches of a shard, plain text files in bulk."""
    bulk: list[SourceFile] = []
    size = 0
    for file in shard.files:
        plain = file.format == "text" and file.codec is None and not file.remote
        if bulk and (not plain or len(bulk) == _BULK_FILES or size + file.size > _BULK_BYTES):
            yield bulk, read_texts(bulk, shard.source.max_document_bytes)
            bulk, size = [], 0
        if plain:
            bulk.append(file)
            size += file.size
            continue
        for batch in read_file(file, shard.source):
            yield [file], batch
    if bulk:
        yield bulk, read_texts(bulk, shard.source.max_document_bytes)


def _with_files(rejected: pa.Table, files: Sequence[SourceFile]) -> pa.Table:
    """Adds the column `file`; of bulk reads the excerpt is the file's place."""
    place = rejected["excerpt"] if len(files) > 1 else pa.array([files[0].place] * len(rejected))
    return rejected.add_column(0, "file", place.cast(pa.string()))


def _kind(reason: str) -> str:
    """The part of a reason that is the same for all records of a kind."""
    return reason.partition(":")[0]


def _identified(documents: pa.Table, name: str) -> pa.Table:
    """Fills `source`, and `id` where it is null, and puts the three columns first."""
    documents = documents.combine_chunks()
    source = pc.fill_null(documents["source"], name)
    ids = documents["id"]
    if ids.null_count:
        (batch,) = documents.set_column(
            documents.schema.get_field_index("source"), "source", source
        ).to_batches()
        places = batch["path"] if "path" in batch.schema.names else None
        if places is None:
            places = pa.array([""] * len(batch), pa.string())
        hashed = pa.array(document_ids(batch["source"], places.cast(pa.string()), batch["text"]))
        ids = pc.coalesce(ids, hashed)
    rest = [n for n in documents.schema.names if n not in ("id", "text", "source")]
    columns = {"id": ids, "text": documents["text"], "source": source}
    return pa.table({**columns, **{name: documents[name] for name in rest}})


def _check_columns(source: Source, files: list[SourceFile], records: list[dict[str, Any]]) -> None:
    """Raises where the text column is in none of the files: a mistake, not a bad record."""
    if any(record["documents"] for record in records):
        return
    missing = f"no column {source.text!r}"
    keys = f"no key {json.dumps(source.text, ensure_ascii=False)}"
    reasons: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
    if reasons and set(reasons) <= {missing, keys}:
        raise MarinError(
            f"source {source.name!r}: {next(iter(reasons))} in {files[0].location}; "
            "set text to the column that holds the documents"
        )


def _name_parts(stage: StageDir, records: list[dict[str, Any]]) -> tuple[dict[str, int], int]:
    """Gives the parts their final names, and repeated ids new ones; returns rows and how many ids
    were new. Renaming is repeated in whole after a kill: a part already renamed is found so."""
    seen = SeenIds()
    rows: dict[str, int] = {}
    renamed = 0
    for record in records:
        for name, count in record["parts"].items():
            target = PART_PATTERN.format(len(rows))
            rows[target] = count
            path = stage.path / name
            if not path.exists():
                path = stage.path / target
            ids = read_part(path, ["id"])["id"].combine_chunks()
            unique = pa.record_batch(seen.unique(ids))
            repeats = pc.sum(unique["renamed"]).as_py() or 0
            renamed += repeats
            if repeats:
                _rewrite_ids(path, stage.path / target, unique["id"])
                if path.name != target:
                    path.unlink()
            elif path.name != target:
                path.rename(stage.path / target)
    if not rows:
        with DocumentWriter(stage.path, PART_PATTERN) as writer:
            writer.write(_identified(_nothing(), ""))
        rows = writer.rows
    return rows, renamed


def _nothing() -> pa.Table:
    strings = pa.array([], pa.string())
    return pa.table({"id": strings, "text": pa.array([], pa.large_string()), "source": strings})


def _rewrite_ids(path: Path, target: Path, ids: pa.Array) -> None:
    start = 0
    with (
        pq.ParquetFile(path) as file,
        atomic_file(target) as partial,
        parquet_writer(partial, file.schema_arrow) as writer,
    ):
        for group in range(file.num_row_groups):
            table = file.read_row_group(group)
            chunk = ids.slice(start, len(table))
            start += len(table)
            writer.write_table(table.set_column(0, "id", chunk), row_group_size=len(table))


def _collect_quarantine(stage: StageDir, shards: list[_Shard], problems: list[str]) -> int:
    """Joins the shards' quarantines into one file; returns its rows."""
    tables = [pq.read_table(path) for s in shards if (path := _quarantine_path(s)).exists()]
    count = len(problems)
    listed = {
        "file": [problem.rpartition(": ")[0] for problem in problems],
        "number": [0] * count,
        "reason": [f"unreadable: {problem.rpartition(': ')[2]}" for problem in problems],
        "excerpt": [""] * count,
    }
    table = pa.concat_tables([pa.table(listed, QUARANTINE_SCHEMA), *tables])
    with (
        atomic_file(stage.path / QUARANTINE) as partial,
        pa.OSFile(str(partial), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)
    return len(table)


def _summary(
    source: Source, records: list[dict[str, Any]], problems: list[str], renamed: int
) -> dict[str, Any]:
    reasons: Counter[str] = Counter({"unreadable": len(problems)} if problems else {})
    sources: Counter[str] = Counter()
    for record in records:
        reasons.update(record["reasons"])
        sources.update(record["sources"])
    totals = {key: sum(r[key] for r in records) for key in ("documents", "bytes", "repaired")}
    return {
        "source": source.name,
        **totals,
        "sources": [{"source": name, "documents": n} for name, n in sorted(sources.items())],
        "quarantined": sum(reasons.values()),
        "reasons": dict(sorted(reasons.items())),
        "renamed_ids": renamed,
    }


def nothing_kept(directory: Path) -> str | None:
    """Why an ingest kept no document, on one line; None if it kept some."""
    manifest = read_manifest(directory)
    summary, parameters = manifest.summary, manifest.parameters
    if summary["documents"]:
        return None
    if summary["quarantined"]:
        reason = _quarantined(directory, summary)
    elif files := summary.get("files"):
        reason = f"{files} files found, none of them with a record"
    else:
        wanted = f" that match {', '.join(parameters['include'])}" * bool(parameters["include"])
        reason = f"no files found{wanted}"
    paths = ", ".join(map(printable, parameters["paths"]))
    return f"source {parameters['name']!r}: no documents in {paths}: {reason}"


def require_documents(directories: Sequence[Path]) -> list[str]:
    """The sources (directories of `ingest`) that kept no document, a line for each.

    Raises:
      MarinError: none of them kept any.
    """
    empty = [line for directory in directories if (line := nothing_kept(directory)) is not None]
    if empty and len(empty) == len(directories):
        raise MarinError("; ".join(empty))
    return empty


def _quarantined(directory: Path, summary: Mapping[str, Any]) -> str:
    """How many records are quarantined, by reason, with an example of the most common one."""
    most = sorted(summary["reasons"].items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{count:,} {reason}" for reason, count in most[:_SHOWN_PROBLEMS])
    path = directory / QUARANTINE
    with pa.OSFile(str(path), "rb") as file:
        rows = pa.ipc.open_file(file).read_all()
    first = rows.slice(0, 1).to_pylist()[0]
    for row in rows.select(["file", "number", "reason"]).to_pylist():
        if _kind(row["reason"]) == most[0][0]:
            first = row
            break
    where = f"{first['file']}, record {first['number']}" if first["number"] else first["file"]
    example = " ".join(f"{where}: {first['reason']}".split())[:_EXAMPLE_CHARACTERS]
    return f"{summary['quarantined']:,} quarantined ({shown}); for example {example}; all: {path}"
