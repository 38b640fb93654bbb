"""`marin dedup`: one JSON object on stdout, one line on stderr for a mistake."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

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


def test_it_is_a_command_of_datakit_too(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["cat", "cat"]}), path)
    written = []
    for number, command in enumerate((["dedup"], ["datakit", "dedup"])):
        out = tmp_path / f"out{number}"
        app([*command, str(path), "--out", str(out)], standalone_mode=False)
        written.append([file.read_bytes() for file in sorted(out.iterdir())])
    assert written[0] == written[1]


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


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"id": ["a", "b"], "text": ["cat", "cat"]}), path)
    return path


def refused(*arguments: object) -> str:
    """What `marin dedup` says against these arguments."""
    with pytest.raises(MarinError) as error:
        CliRunner().invoke(app, ["dedup", *map(str, arguments)], catch_exceptions=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_report_never_replaces_an_input_or_another_file(documents: Path, tmp_path: Path) -> None:
    before, out = documents.read_bytes(), tmp_path / "out"
    assert "would overwrite" in refused(documents, "--out", out, "--report", documents)
    assert "would overwrite" in refused(documents.parent, "--out", out, "--report", documents)
    assert documents.read_bytes() == before
    notes = tmp_path / "notes.html"
    notes.write_text("<!doctype html><p>mine")
    assert "is no page of marin's" in refused(documents, "--out", out, "--report", notes)
    assert notes.read_text() == "<!doctype html><p>mine"
    assert "a folder" in refused(documents, "--out", out, "--report", tmp_path)
    assert "no folder" in refused(documents, "--out", out, "--report", tmp_path / "no" / "r.html")
    assert not out.exists()


def test_the_same_report_is_written_again(documents: Path, tmp_path: Path) -> None:
    command = ["dedup", str(documents), "--out", str(tmp_path / "out")]
    for _ in range(2):
        run = CliRunner().invoke(app, [*command, "--report", str(tmp_path / "out" / "r.html")])
        assert run.exit_code == 0, run.output


@pytest.mark.parametrize("manifest", [None, '{"name": "an extension"}'])
@pytest.mark.parametrize("option", ["--out", "--materialize", "--save-index"])
def test_a_folder_of_somebody_else_is_no_output(
    documents: Path, tmp_path: Path, option: str, manifest: str | None
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "part-00000.parquet").write_text("x")
    if manifest is not None:
        (theirs / "manifest.json").write_text(manifest)
    held = {path: path.read_text() for path in theirs.iterdir()}
    out = [] if option == "--out" else ["--out", tmp_path / "out"]
    assert "marin's wrote" in refused(documents, *out, option, theirs)
    assert {path: path.read_text() for path in theirs.iterdir()} == held
    assert not (tmp_path / "out").exists()


def test_outputs_lie_apart_from_each_other_and_from_files(documents: Path, tmp_path: Path) -> None:
    out, file = tmp_path / "out", tmp_path / "mk.py"
    file.write_text("x")
    assert "not a folder" in refused(documents, "--out", file)
    assert "not a folder" in refused(documents, "--out", file / "below")
    assert "another" in refused(documents, "--out", out, "--materialize", out / "kept")
    assert "in the input" in refused(documents.parent, "--out", documents.parent / "out")
    assert file.read_text() == "x"
