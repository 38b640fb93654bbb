"""What a plan's directory holds: rows by stage and cell, counts by cell, and the schedule."""

from dataclasses import dataclass

import pyarrow as pa

STAGE = "plan"
SCHEDULE_FILE = "schedule.json"
PIECES = pa.list_(
    pa.struct([("document", pa.int64()), ("start", pa.int64()), ("length", pa.int32())])
)
"""The pieces of a row: `length` tokens from `start` on of a document of the cell."""
ROWS_SCHEMA = pa.schema([("pieces", PIECES)])


@dataclass(frozen=True)
class StageCounts:
    """What one stage took from one cell. Tokens in = packed + truncated + more that wait."""

    rows: int
    row_length: int
    documents: int
    tokens: int
    packed_tokens: int
    truncated_tokens: int
    cut_documents: int
    empty_documents: int
    waiting_documents: int
    waiting_tokens: int

    @property
    def padding(self) -> int:
        return self.rows * self.row_length - self.packed_tokens


def rows_file(stage: int, cell: str) -> str:
    """Name of the file with the rows of one stage and cell, relative to the plan."""
    return f"rows-{stage:02d}/{cell}.arrow"


def counts_file(cell: str) -> str:
    return f"cells/{cell}.json"
