"""Inputs and outputs by URL give the bytes of those by path."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from marin.cli.app import app
from marin.datakit.dedup import dedup, save_index
from marin.datakit.dedup.locations import output_directory
from marin.engine import read_manifest
from marin.errors import MarinError


def documents(directory: Path) -> Path:
    (directory / "sub").mkdir(parents=True)
    for name, texts in [("a.parquet", ["cat", "dog"]), ("sub/b.parquet", ["cat", "a bird"])]:
        ids = [f"{name}-{i}" for i in range(len(texts))]
        pq.write_table(pa.table({"id": ids, "text": texts}), directory / name)
    return directory


def test_urls_in_and_out(tmp_path: Path) -> None:
    source = documents(tmp_path / "in")
    local = dedup([source], tmp_path)
    out, kept = tmp_path / "store" / "out", tmp_path / "store" / "kept"
    arguments = ["dedup", source.as_uri(), "--out", out.as_uri(), "--materialize", kept.as_uri()]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["manifest"] == f"{out.as_uri()}/manifest.json"
    for name in ("a.parquet", "sub/b.parquet"):
        assert (out / name).read_bytes() == (local / name).read_bytes()
    assert read_manifest(out).summary == read_manifest(local).summary
    texts = [pq.read_table(kept / n)["text"].to_pylist() for n in ("a.parquet", "sub/b.parquet")]
    assert texts == [["cat", "dog"], ["a bird"]]


def test_an_index_may_name_documents_by_url(tmp_path: Path) -> None:
    url = documents(tmp_path / "in").as_uri()
    index = save_index([url], dedup([url], tmp_path), tmp_path / "index")
    later = tmp_path / "later.parquet"
    pq.write_table(pa.table({"id": ["new"], "text": ["a bird"]}), later)
    found = pq.read_table(dedup([later], tmp_path, against=[index]) / "later.parquet")
    assert found["representative"].to_pylist() == ["sub/b.parquet-1"]


def test_nothing_at_a_url_is_one_line(tmp_path: Path) -> None:
    url = (tmp_path / "absent").as_uri()
    with pytest.raises(MarinError, match="nothing there") as error:
        dedup([url], tmp_path)
    assert "\n" not in str(error.value)


def test_a_failed_block_sends_nothing(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with pytest.raises(ValueError, match="inside"), output_directory(target.as_uri()) as directory:
        directory.mkdir()
        (directory / "a").write_text("a")
        raise ValueError("inside")
    assert not target.exists()
