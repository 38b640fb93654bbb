"""`marin dedup`: one JSON object on stdout, one line on stderr for a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.cli.app import app
from marin.cli.dedup import parse_bytes
from marin.errors import MarinError


def marin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "marin.cli", *arguments], capture_output=True, text=True
    )


def test_json_has_the_promised_keys(tmp_path: Path) -> None:
    documents = tmp_path / "in" / "a.parquet"
    documents.parent.mkdir()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["cat", "cat"]}), documents)
    done = marin("dedup", str(documents.parent), "--out", str(tmp_path / "out"), "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["documents"], answer["kept"]) == (2, 1)
    assert "Read candidates again" not in done.stderr
    assert (answer["removed_exact"], answer["removed_fuzzy"]) == (1, 0)
    assert answer["seconds"] > 0
    assert answer["peak_bytes"] > 0
    assert Path(answer["manifest"]).is_file()
    assert (tmp_path / "out" / "a.parquet").is_file()


def test_a_mistake_is_one_line(tmp_path: Path) -> None:
    done = marin("dedup", str(tmp_path / "absent"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr == f"marin: {tmp_path / 'absent'}: no such file or directory\n"


def test_a_source_that_is_in_no_document_is_refused_before_any_work(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["x", "y"], "source": ["web", None]}), path)
    out = tmp_path / "out"
    for option in ("--priority", "--exempt"):
        with pytest.raises(
            MarinError, match=f"{option}: no document is of the source 'foo', .*web"
        ):
            app(["dedup", str(path), "--out", str(out), option, "web,foo"], standalone_mode=False)
    assert not out.exists()


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2K", 2048), ("1.5MiB", 3 << 19), ("4GB", 4 << 30)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text, "--memory") == size


@pytest.mark.parametrize("text", ["", "many", "-1", "1XB", "1 2"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(MarinError, match="--memory"):
        parse_bytes(text, "--memory")
