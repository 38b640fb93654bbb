"""Readers: one file to batches of documents and quarantined records.

Every reader yields `Batch`es of bounded size: documents with `text`, optional `id` and `source` and
the file's further columns, and the records that are none, each with its reason. No record stops
the next one; a file that breaks off gives what stands before the break.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin._native import parse_jsonl, parse_warc, read_text_files, repair_texts
from marin.datakit.sources import Source, SourceFile
from marin.errors import MarinError

QUARANTINE_SCHEMA = pa.schema(
    [
        pa.field("file", pa.string()),
        pa.field("number", pa.uint64()),
        pa.field("reason", pa.string()),
        pa.field("excerpt", pa.string()),
    ]
)
_BLOCK_BYTES = 8 << 20
_ROWS = 2048
_RESERVED = ("id", "text", "source")


class FileProblem(Exception):
    """A whole file, or the rest of it, that cannot be read."""


@dataclass(frozen=True)
class Batch:
    """`documents`: `id`, `text`, `source` (null where the file says none) and further columns;
    `rejected`: number of the record in the file, reason, excerpt; `repaired`: malformed UTF-8
    sequences replaced."""

    documents: pa.Table
    rejected: pa.Table
    repaired: int


def read_file(file: SourceFile, source: Source) -> Iterator[Batch]:
    """Yields the batches of a file in its order; problems of the file are a rejected record."""
    reader = _READERS[file.format]
    try:
        yield from reader(file, source)
    except FileProblem as error:
        yield _problem(str(error))
    except (OSError, pa.ArrowException) as error:
        if isinstance(error.__cause__ or error.__context__, MarinError):
            raise
        yield _problem(f"unreadable: {str(error).strip().partition(chr(10))[0]}")


def _problem(reason: str) -> Batch:
    return Batch(_documents(0), _rejected([0], [reason], [""]), 0)


def _documents(rows: int) -> pa.Table:
    nothing = pa.nulls(rows, pa.string())
    return pa.table({"id": nothing, "text": pa.nulls(rows, pa.large_string()), "source": nothing})


def _rejected(numbers: Any, reasons: Any, excerpts: Any) -> pa.Table:
    return pa.table(
        {
            "number": pa.array(numbers, pa.uint64()),
            "reason": pa.array(reasons, pa.string()),
            "excerpt": pa.array(excerpts, pa.string()),
        }
    )


# Record streams: JSON Lines and WARC.


def _jsonl(file: SourceFile, source: Source) -> Iterator[Batch]:
    def parse(block: bytes, last: bool) -> tuple[int, int, Any, Any]:
        return parse_jsonl(block, last, source.text, source.id, source.source, 0)

    yield from _records(file, source, parse)


def _warc(file: SourceFile, source: Source) -> Iterator[Batch]:
    yield from _records(file, source, parse_warc)


def _records(
    file: SourceFile, source: Source, parse: Callable[[bytes, bool], tuple[int, int, Any, Any]]
) -> Iterator[Batch]:
    """Feeds blocks to `parse`; a record longer than the limit is dropped to its end."""
    start, pending, skipping = 0, b"", False
    with file.stream() as stream:
        while True:
            try:
                block = stream.read(_BLOCK_BYTES)
            except OSError as error:
                if isinstance(error.__cause__ or error.__context__, MarinError):
                    raise
                yield from _parsed(parse(pending, True), start)
                raise FileProblem(f"breaks off: {error}") from None
            last = not block
            if skipping:
                _, found, block = block.partition(b"\n")
                skipping = not found and not last
                if skipping:
                    continue
            data = pending + block
            answer = parse(data, last)
            yield from _parsed(answer, start)
            start += answer[1]
            pending = data[answer[0] :]
            if last:
                return
            if len(pending) > source.max_document_bytes:
                reason = f"longer than {source.max_document_bytes} bytes"
                excerpt = pending[:200].decode("utf-8", "replace")
                yield Batch(_documents(0), _rejected([start], [reason], [excerpt]), 0)
                start, pending, skipping = start + 1, b"", True


def _parsed(answer: tuple[int, int, Any, Any], start: int) -> Iterator[Batch]:
    rows, rejected = pa.record_batch(answer[2]), pa.record_batch(answer[3])
    if len(rows) == len(rejected) == 0:
        return
    table = pa.Table.from_batches([rows])
    numbers = pc.add(rejected["number"], pa.scalar(start, pa.uint64()))
    yield Batch(
        table.select(["id", "text", "source", "metadata"]),
        _rejected(numbers, rejected["reason"], rejected["excerpt"]),
        pc.sum(rows["repaired"]).as_py() or 0,
    )


# Columnar files: Parquet and Arrow IPC.


def _parquet(file: SourceFile, source: Source) -> Iterator[Batch]:
    start = 0
    with pq.ParquetFile(file.open()) as parquet:
        _check_columns(parquet.schema_arrow, source)
        for group in range(parquet.num_row_groups):
            rows = parquet.metadata.row_group(group).num_rows
            done = 0
            try:
                for batch in parquet.iter_batches(_ROWS, row_groups=[group]):
                    yield _columns(batch, source, start + done)
                    done += len(batch)
            except (OSError, pa.ArrowException) as error:
                if isinstance(error.__cause__ or error.__context__, MarinError):
                    raise
                reason = str(error).strip().partition("\n")[0]
                text = f"unreadable: the last {rows - done} rows of row group {group}: {reason}"
                yield Batch(_documents(0), _rejected([start + done], [text], [""]), 0)
            start += rows


def _arrow(file: SourceFile, source: Source) -> Iterator[Batch]:
    start = 0
    with file.stream() as stream:
        for batch in _arrow_batches(file, stream, source):
            for at in range(0, len(batch), _ROWS):
                yield _columns(batch.slice(at, _ROWS), source, start + at)
            start += len(batch)


def _arrow_batches(file: SourceFile, stream: Any, source: Source) -> Iterator[pa.RecordBatch]:
    if file.codec is None:
        try:
            reader = pa.ipc.open_file(stream)
        except pa.ArrowInvalid:
            stream.seek(0)
        else:
            _check_columns(reader.schema, source)
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)
            return
    reader = pa.ipc.open_stream(stream)
    _check_columns(reader.schema, source)
    yield from reader


def _check_columns(schema: pa.Schema, source: Source) -> None:
    if source.text not in schema.names:
        raise FileProblem(f"no column {source.text!r}: found {', '.join(schema.names)}")
    kind = schema.field(source.text).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (_is_text(kind) or _is_binary(kind)):
        raise FileProblem(f"column {source.text!r} is {kind}: expected strings")


def _is_text(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def _is_binary(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def _columns(batch: pa.RecordBatch, source: Source, start: int) -> Batch:
    fixed = pa.record_batch(repair_texts(_binary(batch[source.text])))
    empty = pa.nulls(len(batch), pa.string())
    columns = {
        "id": _strings(batch[source.id]) if source.id in batch.schema.names else empty,
        "text": fixed["text"],
        "source": empty,
    }
    if source.source is not None and source.source in batch.schema.names:
        columns["source"] = _strings(batch[source.source])
    mapped = {source.text, source.id, source.source}
    for name in batch.schema.names:
        if name not in mapped:
            columns[f"{name}_" if name in _RESERVED else name] = batch[name]
    table = pa.table(columns)
    absent = fixed["text"].is_null()
    numbers = pc.add(pc.indices_nonzero(absent), start)
    count = len(numbers)
    rejected = _rejected(numbers, [f"{source.text!r} is null"] * count, [""] * count)
    kept = table.filter(pc.invert(absent)) if count else table
    return Batch(kept, rejected, pc.sum(fixed["repaired"]).as_py() or 0)


def _binary(column: pa.Array) -> pa.Array:
    """The bytes of a text column: not yet taken for valid UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.view(pa.large_binary())
    return column if _is_binary(column.type) else column.cast(pa.large_binary())


def _strings(column: pa.Array) -> pa.Array:
    """A column of ids or sources as strings; empty ones are null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_text(column.type) or _is_binary(column.type):
        column = pa.record_batch(repair_texts(_binary(column)))["text"]
    try:
        column = column.cast(pa.string())
    except pa.ArrowException:
        raise FileProblem(f"ids and sources are {column.type}: expected strings") from None
    return pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)


# Text trees.


def _text(file: SourceFile, source: Source) -> Iterator[Batch]:
    if file.codec is None and not file.remote:
        yield read_texts([file], source.max_document_bytes)
        return
    with file.stream() as stream:
        data = stream.read(source.max_document_bytes + 1)
    if len(data) > source.max_document_bytes:
        raise FileProblem("too large")
    if b"\0" in data[:8000]:
        raise FileProblem("binary")
    fixed = pa.record_batch(repair_texts(pa.array([data], pa.large_binary())))
    yield _texts([file], fixed["text"], pa.array([""]), fixed["repaired"])


def read_texts(files: list[SourceFile], max_bytes: int) -> Batch:
    """Local text files in bulk: one document per file."""
    found = pa.record_batch(read_text_files([file.location for file in files], max_bytes, 0))
    return _texts(files, found["text"], found["problem"], found["repaired"])


def _texts(
    files: list[SourceFile], texts: pa.Array, problems: pa.Array, repaired: pa.Array
) -> Batch:
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
    problems = pc.if_else(pc.fill_null(blank, False), "empty", problems)
    nothing = pa.nulls(len(files), pa.string())
    places = pa.array([file.place for file in files], pa.string())
    table = pa.table({"id": nothing, "text": texts, "source": nothing, "path": places})
    good = pc.equal(problems, "")
    bad = pc.invert(good)
    count = pc.sum(bad).as_py() or 0
    reasons = pc.if_else(
        pc.is_in(problems, value_set=pa.array(["binary", "empty", "too large", "not a file"])),
        problems,
        pc.binary_join_element_wise("unreadable", problems, ": "),
    )
    rejected = _rejected([0] * count, reasons.filter(bad), places.filter(bad))
    return Batch(table.filter(good), rejected, pc.sum(repaired).as_py() or 0)


_READERS: dict[str, Callable[[SourceFile, Source], Iterator[Batch]]] = {
    "parquet": _parquet,
    "jsonl": _jsonl,
    "arrow": _arrow,
    "warc": _warc,
    "text": _text,
}
