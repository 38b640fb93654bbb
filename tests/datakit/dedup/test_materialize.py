"""Kept documents as files of their own, and inputs that nothing touches."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin._native import xxh3_file
from marin.datakit.dedup import DedupConfig, dedup, materialize, save_index
from marin.engine import Local, read_manifest
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


def test_a_file_may_be_named_like_an_index_or_an_earlier_removal(tmp_path: Path) -> None:
    old = tmp_path / "old.parquet"
    pq.write_table(pa.table({"id": ["a"], "text": ["cat"]}), old)
    index = save_index([old], dedup([old], tmp_path), tmp_path / "index")
    names = ("index 0.parquet", "removed before.parquet")
    (tmp_path / "in").mkdir()
    for name in names:
        pq.write_table(pa.table({"id": [name], "text": [f"dog {name}"]}), tmp_path / "in" / name)
    sidecars = dedup([tmp_path / "in"], tmp_path, against=[index])
    out = materialize([tmp_path / "in"], sidecars, tmp_path / "kept")
    assert tuple(entry.name for entry in read_manifest(out).files) == names


@pytest.mark.parametrize("ids", [["a", "a", "a"], [None, None, None], None])
def test_ids_may_be_made(ids: list | None, tmp_path: Path) -> None:
    columns = {"text": ["cat", "a dog", "cat"], "stars": [1, 2, 3]}
    table = pa.table(columns if ids is None else columns | {"id": pa.array(ids, pa.string())})
    path = tmp_path / "p.parquet"
    pq.write_table(table, path)
    with pytest.raises(MarinError, match=r"no column 'id'|make.ids"):
        dedup([path], tmp_path)
    config = DedupConfig(make_ids=True)
    sidecars = dedup([path], tmp_path, config)
    rows = pq.read_table(sidecars / "p.parquet").to_pylist()
    made = [f"p.parquet@{xxh3_file(path)[:12]}#{row}" for row in range(3)]
    assert [row["id"] for row in rows] == made
    assert [row["representative"] for row in rows] == [None, None, made[0]]
    out = materialize([path], sidecars, tmp_path / "kept")
    kept = pq.read_table(out / "p.parquet").select(["id", "text", "stars"]).to_pydict()
    assert kept == {"id": made[:2], "text": ["cat", "a dog"], "stars": [1, 2]}
    index = save_index([path], sidecars, tmp_path / "index", config)
    later = tmp_path / "later.parquet"
    pq.write_table(pa.table({"text": ["a dog"]}), later)
    found = pq.read_table(dedup([later], tmp_path, config, against=[index]) / "later.parquet")
    assert found["representative"].to_pylist() == [made[1]]


def test_made_ids_of_files_of_one_name_differ_between_corpora_and_not_between_machines(
    tmp_path: Path,
) -> None:
    def documents(place: str, texts: list[str]) -> Path:
        path = tmp_path / place / "part-00000.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"text": texts}), path)
        return path.parent

    def ids(sidecars: Path) -> list[str]:
        return pq.read_table(sidecars / "part-00000.parquet")["id"].to_pylist()

    config = DedupConfig(make_ids=True)
    old = documents("old", ["cat", "a dog"])
    sidecars = dedup([old], tmp_path / "1", config)
    index = save_index([old], sidecars, tmp_path / "index", config)
    new = documents("new", ["cat", "a bird"])
    for engine in (None, Local()):
        later = dedup([new], tmp_path / f"2{engine}", config, against=[index], engine=engine)
        found = pq.read_table(later / "part-00000.parquet")["representative"].to_pylist()
        assert found == [ids(sidecars)[0], None]
    elsewhere = documents("other/machine", ["cat", "a dog"])
    assert ids(dedup([elsewhere], tmp_path / "3", config)) == ids(sidecars)
    with pytest.raises(MarinError, match="the same file: leave it out"):
        dedup([elsewhere], tmp_path / "4", config, against=[index])
