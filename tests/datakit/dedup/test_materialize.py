"""Kept documents as files of their own, and inputs that nothing touches."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.datakit.dedup import dedup, materialize
from marin.errors import MarinError


def test_kept_documents_have_all_their_columns(tmp_path: Path) -> None:
    documents = tmp_path / "in"
    documents.mkdir()
    path = documents / "a.parquet"
    table = pa.table(
        {
            "id": ["a", "b", "c"],
            "text": ["cat", "cat", "dog"],
            "stars": pa.array([1, 2, 3], pa.int8()),
        }
    )
    pq.write_table(table, path)
    before = path.read_bytes()
    sidecars = dedup([documents], tmp_path)
    out = materialize([documents], sidecars, tmp_path / "kept")
    assert pq.read_table(out / "a.parquet") == table.take([0, 2])
    assert path.read_bytes() == before
    for directory in (documents, documents / "below", sidecars):
        with pytest.raises(MarinError, match="choose another directory"):
            materialize([documents], sidecars, directory)
    other = tmp_path / "other.parquet"
    pq.write_table(table.slice(1), other)
    with pytest.raises(MarinError, match="made from other inputs"):
        materialize([other], sidecars, tmp_path / "kept2")
