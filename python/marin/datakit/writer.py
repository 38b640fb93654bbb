"""Writing a documents directory: parts and row groups of bounded text."""

from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin.datakit.parts import parquet_writer
from marin.engine.files import PARTIAL_PREFIX, atomic_file

PART_BYTES = 16 << 20
GROUP_BYTES = 8 << 20


class DocumentWriter:
    """Cuts a stream of documents into parts of about 16 MiB and row groups of about 8 MiB of text.

    Where a cut falls depends on the documents alone, not on how they are batched in `write`; a
    document is never cut, so one that is larger makes a larger group. `rows` holds the finished
    parts: one at least, if `write` was called. Memory: one row group.
    """

    def __init__(self, directory: Path, pattern: str) -> None:
        self.rows: dict[str, int] = {}
        self._directory = directory
        self._pattern = pattern
        self._schema: pa.Schema | None = None
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._part_bytes = 0
        self._part_rows = 0
        self._writer: pq.ParquetWriter | None = None
        self._partial = directory / f"{PARTIAL_PREFIX}{pattern.format(0)}"

    def __enter__(self) -> "DocumentWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._write_group()
            if self._writer is None and not self.rows and self._schema is not None:
                self._writer = parquet_writer(self._partial, self._schema)
            self._finish_part()
        elif self._writer is not None:
            self._writer.close()
            self._partial.unlink(missing_ok=True)

    def write(self, table: pa.Table) -> None:
        """Adds documents; a row group is written whenever one is full. Documents with other
        columns than those before start a new part."""
        if self._schema is not None and self._schema != table.schema:
            self._write_group()
            self._finish_part()
        self._schema = table.schema
        sizes = pc.fill_null(pc.binary_length(table["text"]), 0).to_numpy().astype(np.int64)
        start = 0
        while start < len(table):
            ends = self._pending_bytes + np.cumsum(sizes[start:])
            count = int(np.searchsorted(ends, GROUP_BYTES)) + 1
            count = min(count, len(table) - start)
            self._pending.append(table.slice(start, count))
            self._pending_bytes = int(ends[count - 1])
            start += count
            if self._pending_bytes >= GROUP_BYTES:
                self._write_group()

    def _write_group(self) -> None:
        if not self._pending:
            return
        if self._writer is None:
            self._writer = parquet_writer(self._partial, self._schema)
        group = pa.concat_tables(self._pending)
        self._writer.write_table(group, row_group_size=len(group))
        self._part_bytes += self._pending_bytes
        self._part_rows += len(group)
        self._pending, self._pending_bytes = [], 0
        if self._part_bytes >= PART_BYTES:
            self._finish_part()

    def _finish_part(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        name = self._pattern.format(len(self.rows))
        with atomic_file(self._directory / name) as partial:
            self._partial.replace(partial)
        self.rows[name] = self._part_rows
        self._writer, self._part_bytes, self._part_rows = None, 0, 0
