"""Documents that are removed already: they take no part in a deduplication."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin._native import xxh3_bytes
from marin.datakit.dedup.inputs import DocumentFile
from marin.datakit.parts import check_same_rows
from marin.engine import read_manifest
from marin.engine.manifest import fingerprint
from marin.errors import MarinError

_COLUMNS = ("representative", "similarity", "reason")


@dataclass(frozen=True)
class Earlier:
    """What a sidecar directory removed from the files of a deduplication.

    `rows` has the removed rows of each file by its name: `row` in the file, `id`, `representative`,
    `similarity`, `reason`. `mask` is bool over all documents, empty where nothing is removed.
    """

    directory: Path
    rows: dict[str, pa.Table]
    mask: np.ndarray

    @property
    def fingerprint(self) -> str:
        """Of what is removed and why; evaluation sets that find the same give the same."""
        return fingerprint({name: _content(table) for name, table in self.rows.items()})

    def reasons(self) -> dict[str, int]:
        """How many documents went for each reason."""
        counted = [e for t in self.rows.values() for e in pc.value_counts(t["reason"]).to_pylist()]
        names = sorted({entry["values"] for entry in counted})
        return {n: sum(e["counts"] for e in counted if e["values"] == n) for n in names}

    def fill(self, file: DocumentFile, start: int, decided: pa.RecordBatch) -> pa.RecordBatch:
        """`decided`, the sidecar rows of `file` from row `start`, with the earlier removals' own.

        Raises:
          MarinError: the earlier sidecar has other documents there.
        """
        if file.name not in self.rows:
            return decided
        table = self.rows[file.name]
        at = table["row"].to_numpy()
        low, high = np.searchsorted(at, [start, start + len(decided)])
        if low == high:
            return decided
        rows, table = at[low:high] - start, table.slice(low, high - low)
        check_same_rows(decided["id"].take(pa.array(rows)), table["id"], self.directory / file.name)
        mask = np.zeros(len(decided), bool)
        mask[rows] = True
        for name in _COLUMNS:
            index = decided.schema.get_field_index(name)
            values = pc.replace_with_mask(decided[name], mask, table[name].combine_chunks())
            decided = decided.set_column(index, decided.schema.field(name), values)
        return decided


def read_earlier(directory: Path | None, files: Sequence[DocumentFile]) -> Earlier:
    """Reads a sidecar directory over `files`; None: nothing is removed.

    Raises:
      MarinError: a file has no sidecar there, or one with another number of rows.
    """
    tables: dict[str, pa.Table] = {}
    mask = np.zeros(sum(file.rows for file in files), bool)
    if directory is not None:
        found = {entry.name: entry.rows for entry in read_manifest(directory).files}
        for file in files:
            if found.get(file.name) != file.rows:
                raise MarinError(
                    f"{directory / file.name}: {found.get(file.name, 0)} rows for {file.rows} "
                    f"documents of {file.location}; give the sidecars of these inputs"
                )
            table = _removed(directory / file.name)
            if len(table):
                tables[file.name] = table
                mask[file.first + table["row"].to_numpy()] = True
    return Earlier(directory or Path(), tables, mask if tables else mask[:0])


def _removed(path: Path) -> pa.Table:
    table = pq.read_table(path, columns=["id", "keep", *_COLUMNS])
    rows = np.flatnonzero(~table["keep"].to_numpy())
    return table.drop_columns("keep").take(rows).add_column(0, "row", pa.array(rows))


def _content(table: pa.Table) -> str:
    """32 hex digits over the values, however they lie in chunks."""
    table = table.combine_chunks().replace_schema_metadata(None)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return xxh3_bytes(sink.getvalue().to_pybytes())
