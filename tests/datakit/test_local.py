import logging
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin import MarinError
from marin.datakit import LocalConfig, local_documents
from marin.datakit.parts import read_part
from marin.engine import read_manifest


def _rows(directory: Path) -> list[dict[str, str]]:
    return read_part(directory / "part-00000.parquet", ["id", "text", "source", "path"]).to_pylist()


def _run(tmp_path: Path, *paths: Path, **config: int) -> Path:
    return local_documents(tmp_path / "out", LocalConfig(paths=paths, **config))


def test_text_is_taken_and_everything_else_counted(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("first")
    (folder / "sub" / "b").write_bytes(b"\xff caf\xe9")
    (folder / "blank.txt").write_text(" \n\t")
    (folder / "image.png").write_bytes(b"\x89PNG\0\0")
    (folder / "large.txt").write_text("x" * 5000)
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to(folder / "nowhere")
    (folder / "loop").symlink_to(folder)
    (folder / "sub" / "up").symlink_to("..")
    directory = _run(tmp_path, folder, max_file_bytes=4000)
    assert [(r["text"], r["path"]) for r in _rows(directory)] == [
        ("first", "a.txt"),
        ("\ufffd caf\ufffd", "sub/b"),
    ]
    summary = read_manifest(directory).summary
    assert summary["skipped"] == {
        "binary": 1,
        "empty": 1,
        "not a file": 1,
        "too large": 1,
        "unreadable": 1,
    }
    assert summary["repaired"] == 2
    assert summary["problems"] == [f"{folder}/dangling: No such file or directory"]


def test_names_that_are_not_unicode_or_hold_line_breaks_do_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "odd"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\n-rf *")).write_text("kept")
    (folder / "a\nb").symlink_to("nowhere")
    with caplog.at_level(logging.WARNING):
        (row,) = _rows(_run(tmp_path, folder))
    assert row["text"] == "kept"
    assert "\n" not in row["path"]
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()


def test_a_file_reached_twice_is_one_document(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "x.txt").write_text("once")
    os.link(folder / "b" / "x.txt", folder / "hard.txt")
    (folder / "soft.txt").symlink_to("b/x.txt")
    assert len(_rows(_run(tmp_path, folder, folder / "b", folder))) == 1


def test_a_second_call_finds_the_finished_directory_until_a_file_changes(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "x.txt").write_text("one")
    first = _run(tmp_path, folder)
    written = (first / "manifest.json").stat().st_mtime_ns
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("ignored")
    assert _run(tmp_path, folder) == first
    assert (first / "manifest.json").stat().st_mtime_ns == written
    (folder / "x.txt").write_text("two words")
    assert _run(tmp_path, folder) != first


def test_the_output_below_an_input_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("document")
    first = _run(tmp_path, tmp_path)
    (tmp_path / "out" / "notes.txt").write_text("not a document")
    assert _run(tmp_path, tmp_path) == first
    assert len(_rows(first)) == 1


@pytest.mark.parametrize("kind", ["empty", "binaries", "dangling", "blank"])
def test_a_folder_without_text_is_one_line(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / kind
    folder.mkdir()
    if kind == "binaries":
        (folder / "a").write_bytes(b"\0" * 100)
    if kind == "dangling":
        (folder / "a").symlink_to("nowhere")
    if kind == "blank":
        (folder / "a").write_text("\n")
    with pytest.raises(MarinError, match="no text documents found") as error:
        _run(tmp_path, folder)
    assert "\n" not in str(error.value)


def test_an_input_that_is_missing_or_is_the_output_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match="no such file"):
        _run(tmp_path, tmp_path / "absent")
    (tmp_path / "out" / "sub").mkdir(parents=True)
    for path in (tmp_path / "out", tmp_path / "out" / "sub"):
        with pytest.raises(MarinError, match="must not be the output"):
            _run(tmp_path, path)
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / "sub"]


def test_the_byte_limit_holds_and_files_of_one_name_go_together(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    for family in range(40):
        for copy in range(5):
            path = folder / str(copy) / f"name{family}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"family {family} copy {copy} ".ljust(100))
    rows = _rows(_run(tmp_path, folder, max_bytes=5000))
    assert 5000 <= sum(len(row["text"]) for row in rows) < 5000 + 100
    families = [row["path"].rpartition("/")[2] for row in rows]
    assert len(set(families)) == 10
    assert len({row["id"] for row in rows}) == len(rows)


def test_files_of_records_give_their_documents(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.jsonl").write_text('{"id": "x", "text": "one"}\nbroken\n{"text": " "}\n')
    pq.write_table(pa.table({"text": ["two", "two"]}), folder / "b.parquet")
    (folder / "c.txt").write_text("three")
    directory = _run(tmp_path, folder)
    rows = _rows(directory)
    assert sorted(row["text"] for row in rows) == ["one", "three", "two", "two"]
    assert len({row["id"] for row in rows}) == 4
    assert "x" in {row["id"] for row in rows}
    assert read_manifest(directory).summary["skipped"] == {"not a document": 1, "empty": 1}


def test_documents_of_this_machine_are_found(tmp_path: Path) -> None:
    directory = local_documents(tmp_path, LocalConfig(max_bytes=400_000))
    summary = read_manifest(directory).summary
    assert {"licences", "packages", "python"} <= {s["source"] for s in summary["sources"]}
    assert 400_000 <= summary["bytes"] < 3_000_000
    assert summary["documents"] > 20
