"""The Parquet files of a deduplication, read in parallel, in batches of bounded size."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin.datakit.dedup.locations import Place, base_name, open_file, parquet_files
from marin.engine import Manifest, read_manifest
from marin.errors import MarinError

INDEX = "index {}/"
REMOVED = "removed before/"
"""Names among the inputs of a manifest that are not files of documents: no file's ends so."""

SIGNATURES = ".signatures"
"""The folder of an output where tasks of an engine leave their work until the end. No sidecar lies
there."""

_FINGERPRINT_DIGITS = 12
"""Of a file's fingerprint, in made ids: 10,000 files of one name agree by chance once in 5 million
corpora."""

_BATCH_BYTES = 4 << 20
_BATCH_ROWS = 1 << 16
_READ_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class DocumentFile:
    """One input file. `name` is that of its sidecar, relative to the output directory; `first` is
    the number of its first document among all. `columns` are those to read: `text`, `source` if
    there is one, and `id` unless ids are made. `fingerprint` stands for the content, and
    `time_and_size` is that of the file before the fingerprint was taken, if it is known.
    """

    name: str
    location: str
    fingerprint: str
    first: int
    metadata: pq.FileMetaData
    columns: tuple[str, ...]
    time_and_size: list[int] | None = None

    @property
    def rows(self) -> int:
        return int(self.metadata.num_rows)

    def made_ids(self, row: int, count: int) -> pa.Array:
        """Ids of rows `row..row + count`, see `DedupConfig.make_ids`: the same on every machine,
        and others for a file of the same name in another corpus."""
        rows = pa.array(np.arange(row, row + count)).cast(pa.string())
        file = f"{self.name}@{self.fingerprint[:_FINGERPRINT_DIGITS]}"
        return pc.binary_join_element_wise(file, rows, "#")


@dataclass(frozen=True)
class RowGroup:
    """One row group of a file; `first` is the number of its first document among all."""

    file: DocumentFile
    index: int
    first: int
    rows: int

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """(number of the first document, batch) of about 4 MiB each."""
        group = self.file.metadata.row_group(self.index)
        rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES * self.rows // max(group.total_byte_size, 1)))
        first = self.first
        try:
            with pq.ParquetFile(
                open_file(self.file.location),
                metadata=self.file.metadata,
                buffer_size=_READ_BUFFER_BYTES,
            ) as reader:
                for batch in reader.iter_batches(
                    rows, row_groups=[self.index], columns=list(columns), use_threads=False
                ):
                    yield first, batch
                    first += batch.num_rows
        except (OSError, pa.ArrowException) as error:
            raise MarinError(f"{self.file.location}: cannot be read ({error})") from None


def find_files(inputs: Sequence[Place], *, make_ids: bool) -> tuple[DocumentFile, ...]:
    """The files of document directories and Parquet files, in the order of their names.

    Raises:
      MarinError: an input is missing, unfinished, no Parquet, lacks a column, or two files would
        have the same name, or one a name that is kept for `SIGNATURES`.
    """
    found = [
        (source, name, location, changed, fingerprint)
        for source in inputs
        for name, location, changed, fingerprint in parquet_files(source)
    ]
    if not found:
        raise MarinError(f"{', '.join(map(str, inputs)) or 'no input'}: no Parquet file there")
    names = [name for _, name, *_ in found]
    if len(set(names)) < len(names):
        # A place that is a file is named like it already.
        found = [
            (source, name if name == base else f"{base}/{name}", location, changed, fingerprint)
            for source, name, location, changed, fingerprint in found
            for base in [base_name(source)]
        ]
    found.sort(key=lambda entry: entry[1])
    for (_, name, path, *_), (_, next_name, next_path, *_) in pairwise(found):
        if name == next_name:
            raise MarinError(
                f"{path} and {next_path}: both sidecars would be {name}; "
                "rename one of the input directories or run them apart"
            )
    files, first = [], 0
    for _, name, path, changed, fingerprint in found:
        if name.partition("/")[0] == SIGNATURES:
            raise MarinError(
                f"{path}: its sidecar would be {name}, among the work of tasks; "
                f"rename {SIGNATURES} in the input"
            )
        file = open_documents(path, name, fingerprint, first, make_ids=make_ids)
        files.append(replace(file, time_and_size=changed))
        first += files[-1].rows
    return tuple(files)


def open_documents(
    location: str, name: str, fingerprint: str, first: int, *, make_ids: bool
) -> DocumentFile:
    """Reads the metadata of a Parquet file of documents.

    Raises:
      MarinError: it is none, or lacks a column.
    """
    try:
        with pq.ParquetFile(open_file(location)) as file:
            metadata, names = file.metadata, file.schema_arrow.names
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise MarinError(f"{location}: not a readable Parquet file ({reason})") from None
    required = ("text",) if make_ids else ("id", "text")
    for column in required:
        if column not in names:
            found = ", ".join(names) or "none"
            raise MarinError(f"{location}: no column {column!r}; columns found: {found}")
    columns = (*required, "source") if "source" in names else required
    return DocumentFile(name, location, fingerprint, first, metadata, columns)


def read_sidecars(
    sidecars: Path, files: Sequence[DocumentFile], inputs: Sequence[Place]
) -> Manifest:
    """The manifest of a dedup directory over `files`, which are those of `inputs`.

    Raises:
      MarinError: it was made from other files.
    """
    manifest = read_manifest(sidecars)
    made_from = {n: f for n, f in manifest.inputs.items() if not n.endswith("/")}
    if {file.name: file.fingerprint for file in files} != made_from:
        raise MarinError(f"{sidecars}: made from other inputs than {', '.join(map(str, inputs))}")
    return manifest


def row_groups(files: Sequence[DocumentFile]) -> list[RowGroup]:
    groups = []
    for file in files:
        first = file.first
        for index in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(index).num_rows
            groups.append(RowGroup(file, index, first, rows))
            first += rows
    return groups


def for_each_batch(
    groups: Sequence[RowGroup],
    columns: Sequence[str] | None,
    threads: int,
    work: Callable[[int, pa.RecordBatch], None],
) -> None:
    """Calls `work(first, batch)` for every batch of `groups`, from `threads` threads. `columns`:
    None for those of each file.

    Every thread starts on a row group of its own; where there are fewer of them than threads,
    decoding a group is serial and the work on its batches is parallel. The first error ends all.
    """
    cursors = [
        (threading.Lock(), group.batches(columns or group.file.columns))
        for group in groups
        if group.rows
    ]
    failed = threading.Event()

    def run(thread: int) -> None:
        # A thread walks over its share of the groups first, and then helps with all others.
        own = cursors[thread::threads]
        others = (cursor for at, cursor in enumerate(cursors) if at % threads != thread)
        try:
            for lock, batches in chain(own, others):
                while not failed.is_set():
                    with lock:
                        item = next(batches, None)
                    if item is None:
                        break
                    work(*item)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(run, thread) for thread in range(threads)]:
            future.result()


def strings(column: pa.Array, location: str, name: str) -> pa.Array:
    """`column` as an array of strings or bytes that the Rust side reads."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.dictionary_decode(), kind.value_type
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
    ):
        return column
    if pa.types.is_string_view(kind) or (name != "text" and pa.types.is_integer(kind)):
        return column.cast(pa.large_string())
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.large_string())
    raise MarinError(f"{location}: column {name!r} is {kind}, expected a string")


def valid_strings(column: pa.Array, location: str, name: str, row: int) -> pa.Array:
    """Ids or sources, of a batch that begins at row `row`, as `pa.string()`.

    Raises:
      MarinError: one is not UTF-8, so that it would show as another in a sidecar.
    """
    # Arrow checks what it casts from bytes, and nothing that says it is a string already.
    data = strings(column, location, name).cast(pa.binary())
    try:
        return data.cast(pa.string())
    except pa.ArrowInvalid:
        bad = next(at for at, value in enumerate(data.to_pylist()) if not _is_utf8(value))
        remedy = ", or have ids made (--make-ids)" * (name == "id")
        raise MarinError(
            f"{location}, row {row + bad}: its {name} {data[bad].as_py()!r} is not UTF-8; "
            f"write it as text{remedy}"
        ) from None


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


def document_columns(
    file: DocumentFile, batch: pa.RecordBatch, row: int
) -> tuple[pa.Array, pa.Array, pa.Array | None]:
    """Ids, texts and sources of a batch of `file` that begins at its row `row`.

    Raises:
      MarinError: an id is null, or an id or a source not UTF-8.
    """
    texts = strings(batch.column("text"), file.location, "text")
    named = {
        name: valid_strings(batch.column(name), file.location, name, row)
        for name in file.columns
        if name != "text"
    }
    ids = named.get("id")
    if ids is None:
        ids = file.made_ids(row, batch.num_rows)
    elif ids.null_count:
        row += int(np.argmin(ids.is_valid().to_numpy(zero_copy_only=False)))
        raise MarinError(
            f"{file.location}, row {row}: its id is null; every document needs one, "
            "or have them made (--make-ids)"
        )
    return ids, texts, named.get("source")
