"""What is removed before a deduplication is named by its content, at little cost."""

import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marin.datakit.dedup.earlier import Earlier, read_earlier
from marin.datakit.dedup.inputs import find_files
from marin.datakit.dedup.run import SCHEMA
from marin.engine.manifest import write_manifest


def earlier(folder: Path, representatives: list[str | None], group: int) -> Earlier:
    """Of a file of twice as many documents, of which the odd ones are removed."""
    rows = 2 * len(representatives)
    ids = [f"{i}" for i in range(rows)]
    for name in ("in", "out"):
        (folder / name).mkdir(parents=True)
    pq.write_table(pa.table({"id": ids, "text": ids}), folder / "in" / "a.parquet")
    columns = {
        "id": ids,
        "keep": [i % 2 == 0 for i in range(rows)],
        "cluster": ids,
        "representative": [value for found in representatives for value in (None, found)],
        "similarity": [None if r is None else 0.5 for r in np.repeat(representatives, 2)],
        "reason": ["", "contaminated"] * len(representatives),
    }
    table = pa.table(columns, schema=SCHEMA)
    pq.write_table(table, folder / "out" / "a.parquet", row_group_size=group)
    write_manifest(
        folder / "out", "contamination", parameters={}, inputs={}, rows={"a.parquet": rows}
    )
    return read_earlier(folder / "out", find_files([folder / "in"], make_ids=False))


def test_the_same_removals_have_one_fingerprint_and_others_another(tmp_path: Path) -> None:
    found: list[str | None] = [f"item {i % 7}" for i in range(100)]
    one = earlier(tmp_path / "1", found, group=1000)
    assert earlier(tmp_path / "2", found, group=3).fingerprint == one.fingerprint
    for number, other in enumerate(("", None, "item 8")):
        changed = earlier(tmp_path / f"other-{number}", [*found[:-1], other], group=1000)
        assert changed.fingerprint != one.fingerprint


def test_a_fingerprint_makes_no_objects_of_the_rows(tmp_path: Path) -> None:
    removed = earlier(tmp_path, ["an item"] * 20_000, group=1 << 20)
    tracemalloc.start()
    try:
        assert len(removed.fingerprint) == 32
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # 50 bytes of each row at once; as Python objects they took 670.
    assert peak < 20_000 * 100
