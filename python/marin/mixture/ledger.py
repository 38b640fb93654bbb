"""The quota ledger: what every cell gets in every run of a schedule, as one table."""

from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from marin.engine import atomic_file
from marin.mixture.schedule import Schedule

METADATA_KEY = b"marin.schedule"


def ledger(schedule: Schedule) -> pa.Table:
    """One row per run and cell.

    `rows` and `tokens` are what the cell gets in the run, `target_rows` what it should get there;
    `rows_so_far`, `target_so_far` and `tokens_so_far` count from row 0 to the end of the run;
    `epochs_so_far` are tokens over those that the run may see of the cell (null without any).
    """
    cells = len(schedule.cells)
    order = schedule.order
    available = [
        schedule.revisions[-1].specification.available_tokens.get(cell, 0) * schedule.share
        for cell in schedule.cells
    ]
    columns: dict[str, list[object]] = {name: [] for name in _SCHEMA.names}
    counts, targets = [0] * cells, [Fraction(0)] * cells
    tokens = [0] * cells
    for number, run in enumerate(schedule.runs):
        new_counts, new_targets = order.counts(run.end_row).tolist(), order.targets(run.end_row)
        for cell, name in enumerate(schedule.cells):
            rows = new_counts[cell] - counts[cell]
            tokens[cell] += rows * run.seq_len
            values = {
                "run": number,
                "revision": run.revision,
                "phase": run.phase,
                "seq_len": run.seq_len,
                "batch_size": run.batch_size,
                "first_step": run.first_step,
                "steps": run.steps,
                "first_row": run.first_row,
                "cell": name,
                "rows": rows,
                "target_rows": float(new_targets[cell] - targets[cell]),
                "tokens": rows * run.seq_len,
                "rows_so_far": new_counts[cell],
                "target_so_far": float(new_targets[cell]),
                "tokens_so_far": tokens[cell],
                "epochs_so_far": float(tokens[cell] / available[cell]) if available[cell] else None,
            }
            for key, value in values.items():
                columns[key].append(value)
        counts, targets = new_counts, new_targets
    return pa.table(columns, schema=_SCHEMA).replace_schema_metadata(
        {METADATA_KEY: schedule.fingerprint.encode()}
    )


def write_ledger(schedule: Schedule, path: Path) -> None:
    """Writes `ledger(schedule)` as Parquet (Zstandard), atomically; its metadata hold the
    schedule's fingerprint."""
    table = ledger(schedule)
    with atomic_file(path) as partial:
        pq.write_table(table, partial, compression="zstd")


def is_ledger(path: Path) -> bool:
    """Whether a file is a ledger that was written here."""
    try:
        return METADATA_KEY in (pq.read_schema(path).metadata or {})
    except (OSError, pa.ArrowInvalid):
        return False


_SCHEMA = pa.schema(
    [
        ("run", pa.int32()),
        ("revision", pa.int32()),
        ("phase", pa.string()),
        ("seq_len", pa.int64()),
        ("batch_size", pa.int64()),
        ("first_step", pa.int64()),
        ("steps", pa.int64()),
        ("first_row", pa.int64()),
        ("cell", pa.string()),
        ("rows", pa.int64()),
        ("target_rows", pa.float64()),
        ("tokens", pa.int64()),
        ("rows_so_far", pa.int64()),
        ("target_so_far", pa.float64()),
        ("tokens_so_far", pa.int64()),
        ("epochs_so_far", pa.float64()),
    ]
)
