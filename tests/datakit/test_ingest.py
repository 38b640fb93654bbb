import bz2
import gzip
import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin import MarinError
from marin.cli.app import app
from marin.datakit import Source, ingest
from marin.datakit.ingest import QUARANTINE
from marin.datakit.parts import part_names, read_groups
from marin.engine import Local, read_manifest

CASES = Path(__file__).parent.parent / "cases" / "datakit"


def _ingest(root: Path, *paths: object, **settings: Any) -> Path:
    return ingest(Source("web", tuple(map(str, paths)), **settings), root / "out")


def _rows(directory: Path, *columns: str) -> list[dict[str, Any]]:
    parts = part_names(read_manifest(directory))
    names = columns or ("id", "text", "source")
    return [
        row
        for part in parts
        for batch in read_groups(directory / part, names)
        for row in batch.to_pylist()
    ]


def _texts(directory: Path) -> list[str]:
    return [row["text"] for row in _rows(directory, "text")]


def _quarantine(directory: Path) -> list[dict[str, Any]]:
    return pa.ipc.open_file(directory / QUARANTINE).read_all().to_pylist()


def _reasons(directory: Path) -> list[str]:
    return [row["reason"] for row in _quarantine(directory)]


def test_equal_texts_are_documents_of_their_own(tmp_path: Path) -> None:
    rows = _rows(_ingest(tmp_path, CASES / "plain.jsonl"))
    assert [row["text"] for row in rows[:4]] == ["cat", "dog", "cat", ""]
    assert len({row["id"] for row in rows}) == 5
    assert rows[2]["id"] == rows[0]["id"] + "#2"
    assert {row["source"] for row in rows} == {"web"}


def test_an_id_given_twice_is_made_unique_and_counted(tmp_path: Path) -> None:
    directory = _ingest(tmp_path, CASES / "id_twice.jsonl")
    assert [(row["id"], row["text"]) for row in _rows(directory)] == [
        ("a", "first"),
        ("b", "second"),
        ("a#2", "third"),
    ]
    assert read_manifest(directory).summary["renamed_ids"] == 1


def test_wrong_lines_are_quarantined_with_their_reason(tmp_path: Path) -> None:
    directory = _ingest(tmp_path, CASES / "broken_lines.jsonl")
    assert _texts(directory) == ["good", "\ufffd\ufffd bytes", "last line without a line break"]
    rows = _quarantine(directory)
    assert [(row["number"], row["reason"].partition(":")[0]) for row in rows] == [
        (1, "not JSON"),
        (2, '"text" is null, expected a string'),
        (3, '"text" is a list, expected a string'),
        (4, 'no key "text"'),
        (6, "not JSON"),
    ]
    assert {row["file"] for row in rows} == {"broken_lines.jsonl"}
    summary = read_manifest(directory).summary
    assert (summary["documents"], summary["quarantined"], summary["repaired"]) == (3, 5, 2)


def test_surrogates_nul_bytes_and_deep_values_stop_nothing(tmp_path: Path) -> None:
    found = _texts(_ingest(tmp_path, CASES / "surrogates.jsonl"))
    assert found == ["lone \ufffd and \ufffd here", "pair \U0001f600", "cesu \ufffd\ufffd\ufffd"]
    (row,) = _rows(_ingest(tmp_path, CASES / "nul_bytes.jsonl"), "text", "metadata")
    assert row == {"text": "before\0after", "metadata": '{"url": "x\\u0000y"}'}
    assert _texts(_ingest(tmp_path, CASES / "deep.jsonl")) == ["next"]


def test_crawled_text_is_read_between_noise(tmp_path: Path) -> None:
    directory = _ingest(tmp_path, CASES / "crawl.wet")
    assert _texts(directory) == [
        "Zürich ist eine Stadt.\n",
        "WARC/1.0\r\nWARC-Type: inside the text\r\n\r\nstill text",
    ]
    assert _reasons(directory) == ["not a WARC record", "the record has no end"]


def test_an_empty_source_gives_an_empty_directory(tmp_path: Path) -> None:
    for path in (CASES / "empty.jsonl", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        directory = _ingest(tmp_path, path)
        assert _rows(directory) == []
        assert read_manifest(directory).summary["documents"] == 0


@pytest.mark.parametrize("codec", ["", ".gz", ".zst", ".bz2"])
def test_compressed_lines_are_read_and_a_file_cut_off_gives_its_start(
    tmp_path: Path, codec: str
) -> None:
    lines = b"".join(
        b'{"text": "line %d %s"}\n' % (i, bytes(str(i * i), "ascii")) for i in range(9000)
    )
    data = {
        "": lines,
        ".gz": gzip.compress(lines[:100_000]) + gzip.compress(lines[100_000:]),
        ".zst": pa.compress(lines, "zstd", asbytes=True),
        ".bz2": bz2.compress(lines),
    }[codec]
    (tmp_path / f"whole.jsonl{codec}").write_bytes(data)
    assert len(_texts(_ingest(tmp_path, tmp_path / f"whole.jsonl{codec}"))) == 9000
    (tmp_path / f"cut.jsonl{codec}").write_bytes(data[: len(data) * 2 // 3])
    directory = _ingest(tmp_path, tmp_path / f"cut.jsonl{codec}")
    found = _texts(directory)
    assert found == [f"line {i} {i * i}" for i in range(len(found))]
    assert len(_reasons(directory)) >= 1


def test_a_line_of_50_mb_is_one_document_and_a_longer_one_is_quarantined(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    with path.open("w") as file:
        file.write('{"text": "' + "word " * 10_000_000 + '"}\n{"text": "short"}\n')
    assert [len(text) for text in _texts(_ingest(tmp_path, path))] == [50_000_000, 5]
    directory = _ingest(tmp_path, path, max_document_bytes=20_000_000)
    assert _texts(directory) == ["short"]
    assert _reasons(directory) == ["longer than 20000000 bytes"]


def _write(path: Path, table: pa.Table) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=2)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
    return path


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_columns_are_mapped_and_further_ones_kept(tmp_path: Path, suffix: str) -> None:
    table = pa.table(
        {
            "body": pa.array(["one", None, "three"]),
            "key": pa.array([7, 8, 9]),
            "site": pa.array(["x", None, "y"]).dictionary_encode(),
            "source": ["s1", "s2", "s3"],
            "stars": [0.5, 1.0, 1.5],
        }
    )
    path = _write(tmp_path / f"table{suffix}", table)
    directory = _ingest(tmp_path, path, text="body", id="key", source="site")
    assert _rows(directory, "id", "text", "source", "source_", "stars") == [
        {"id": "7", "text": "one", "source": "x", "source_": "s1", "stars": 0.5},
        {"id": "9", "text": "three", "source": "y", "source_": "s3", "stars": 1.5},
    ]
    assert _reasons(directory) == ["'body' is null"]


def test_a_missing_text_column_is_named_with_what_was_found(tmp_path: Path) -> None:
    path = _write(tmp_path / "table.parquet", pa.table({"body": ["x"], "n": [1]}))
    with pytest.raises(
        MarinError, match=r"no column 'text' in .*table\.parquet; set text to"
    ) as error:
        _ingest(tmp_path, path)
    assert "\n" not in str(error.value)
    with pytest.raises(MarinError, match='no key "body"'):
        _ingest(tmp_path, CASES / "plain.jsonl", text="body")
    good = _write(tmp_path / "good.parquet", pa.table({"text": ["y"]}))
    directory = _ingest(tmp_path, path, good)
    assert _texts(directory) == ["y"]
    assert _reasons(directory) == ["no column 'text': found body, n"]
    numbers = _write(tmp_path / "numbers.parquet", pa.table({"text": [1]}))
    assert _reasons(_ingest(tmp_path, numbers)) == ["column 'text' is int64: expected strings"]


def test_a_damaged_row_group_costs_only_its_rows(tmp_path: Path) -> None:
    texts = [f"{i} " * 2000 for i in range(6)]
    path = tmp_path / "damaged.parquet"
    pq.write_table(
        pa.table({"text": texts}), path, row_group_size=2, compression="none", use_dictionary=False
    )
    column = pq.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset : column.data_page_offset + 40] = b"\xff" * 40
    path.write_bytes(data)
    directory = _ingest(tmp_path, path)
    assert _texts(directory) == texts[:2] + texts[4:]
    (reason,) = _reasons(directory)
    assert reason.startswith("unreadable: the last 2 rows of row group 1")
    path.write_bytes(bytes(data[:100]))
    assert _reasons(_ingest(tmp_path, path))[0].startswith("unreadable")


def test_invalid_utf8_in_a_string_column_is_repaired(tmp_path: Path) -> None:
    broken = pa.array([b"a\xff", b"b"], pa.binary()).view(pa.string())
    directory = _ingest(tmp_path, _write(tmp_path / "t.parquet", pa.table({"text": broken})))
    assert _texts(directory) == ["a\ufffd", "b"]
    assert read_manifest(directory).summary["repaired"] == 1


def test_a_text_tree_is_one_document_per_file(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "b").mkdir(parents=True)
    (tree / "a.txt").write_text("first")
    (tree / "b" / "same.md").write_text("first")
    (tree / "b" / "packed.txt.gz").write_bytes(gzip.compress(b"packed"))
    (tree / "image").write_bytes(b"\0\0")
    (tree / "gone").symlink_to("nowhere")
    directory = _ingest(tmp_path, tree)
    found = [(row["path"], row["text"]) for row in _rows(directory, "path", "text")]
    assert found == [("a.txt", "first"), ("b/packed.txt.gz", "packed"), ("b/same.md", "first")]
    assert sorted(_reasons(directory)) == ["binary", "unreadable: No such file or directory"]
    assert len({row["id"] for row in _rows(directory)}) == 3


def _files(root: Path, sizes: Iterable[int]) -> Path:
    folder = root / "many"
    folder.mkdir()
    for number, size in enumerate(sizes):
        lines = "".join(f'{{"text": "file {number} line {i}"}}\n' for i in range(size))
        (folder / f"{number:03d}.jsonl").write_text(lines)
    return folder


def test_workers_and_interruptions_do_not_change_a_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("marin.datakit.ingest")
    monkeypatch.setattr(module, "_SHARD_BYTES", 30_000)
    source = Source("web", (str(_files(tmp_path, [300, 500, 100, 800, 200])),))
    whole = ingest(source, tmp_path / "a")
    two = ingest(source, tmp_path / "b", engine=Local(2))
    assert read_manifest(two) == read_manifest(whole)
    assert len(part_names(read_manifest(whole))) > 2

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_collect_quarantine", fail)
        with pytest.raises(KeyboardInterrupt):
            ingest(source, tmp_path / "c")
    (shard, *_) = sorted((tmp_path / "c").glob("*/shard-00001.json"))
    shard.unlink()
    assert read_manifest(ingest(source, tmp_path / "c")) == read_manifest(whole)
    assert sorted(p.name for p in whole.iterdir()) == sorted(
        p.name for p in next((tmp_path / "c").iterdir()).iterdir()
    )


def test_paths_that_are_nothing_are_one_line(tmp_path: Path) -> None:
    for path, match in (
        (str(tmp_path / "absent"), "no such file or folder"),
        (str(tmp_path / "*.jsonl"), "nothing matches the pattern"),
    ):
        with pytest.raises(MarinError, match=match) as error:
            _ingest(tmp_path, path)
        assert "\n" not in str(error.value)
    with pytest.raises(MarinError, match="format = 'xml', expected auto"):
        _ingest(tmp_path, tmp_path, format="xml")
    with pytest.raises(MarinError, match="paths is empty"):
        _ingest(tmp_path)
    for name in ("", "mi/ne", "a b"):
        with pytest.raises(MarinError, match=f"source name '{name}': expected letters"):
            ingest(Source(name, (str(CASES / "plain.jsonl"),)), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


class _NoNetwork:
    """A file system of a library whose errors are no `OSError`s."""

    def get_file_info(self, _: object) -> None:
        raise RuntimeError("[Errno -2] Name or service not known")


def test_a_name_that_is_no_path_is_tried_as_a_dataset_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def filesystem(url: str) -> tuple[_NoNetwork, str]:
        asked.append(url)
        return _NoNetwork(), url

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("marin.datakit.sources.filesystem", filesystem)
    with pytest.raises(MarinError, match="own/name: no such file or folder here, tried as a") as e:
        _ingest(tmp_path, "own/name")
    assert str(e.value).endswith(
        "Name or service not known; check the path, or the dataset's name, the network and HF_TOKEN"
    )
    with pytest.raises(MarinError, match=r"s3://own/name: .* not known; check the URL"):
        _ingest(tmp_path, "s3://own/name")
    for path, match in (
        ("own/name*.py", "nothing matches the pattern own/name"),
        ("a/b/c", "a/b/c: no such file or folder; name"),
        ("name", "name: no such file or folder; name"),
        ("./name", "no such file or folder; name"),
    ):
        with pytest.raises(MarinError, match=match):
            _ingest(tmp_path, path)
    assert asked == ["hf://datasets/own/name", "s3://own/name"]


def test_the_quarantine_is_told_with_an_example(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = _ingest(tmp_path, CASES / "broken_lines.jsonl")
    (line,) = caplog.messages
    assert "source web: 5 quarantined (2 not JSON, " in line
    assert "; for example broken_lines.jsonl, record 1: not JSON" in line
    assert line.endswith(f"; all: {directory / QUARANTINE}")
    assert "\n" not in line


def _empty(folder: Path) -> dict[str, tuple[Path, str]]:
    """Paths that hold no document, and why."""
    folder.mkdir()
    (folder / "nothing").mkdir()
    (folder / "code.py").write_text("import os\n" * 3)
    (folder / "zero.parquet").write_bytes(b"")
    (folder / "lines.parquet").write_text('{"text": "x"}\n')
    table = pa.table({"text": ["a" * 5000]})
    cut = folder / "cut.parquet"
    pq.write_table(table, cut)
    cut.write_bytes(cut.read_bytes()[:60])
    return {
        "nothing": (folder / "nothing", "no files found"),
        "zero": (folder / "zero.parquet", "for example zero.parquet: unreadable"),
        "lines": (folder / "lines.parquet", "for example lines.parquet: unreadable"),
        "cut": (cut, "for example cut.parquet: unreadable"),
        "rows": (CASES / "empty.jsonl", "1 files found, none of them with a record"),
    }


def test_the_command_refuses_an_ingest_of_nothing_and_says_why(tmp_path: Path) -> None:
    cases = _empty(tmp_path / "in")
    formats = {"code": (tmp_path / "in" / "code.py", "3 quarantined .3 not JSON.; for example")}
    for name, (path, reason) in (cases | formats).items():
        options = ["--format", "jsonl"] if name == "code" else []
        root = str(tmp_path / "out")
        with pytest.raises(MarinError, match=f"no documents in {path}: .*{reason}") as error:
            app(["datakit", "ingest", str(path), "--root", root, *options], standalone_mode=False)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("paths", "root"),
    [
        ("corpus", "corpus"),
        ("corpus", "corpus/out"),
        ("corpus", "."),
        ("corpus/*", "corpus"),
        ("corpus/a.txt", "corpus/a.txt"),
    ],
)
def test_output_and_source_do_not_lie_in_each_other(tmp_path: Path, paths: str, root: str) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "a.txt").write_text("a text")
    with pytest.raises(MarinError, match="lies in or lies around"):
        ingest(Source("web", (str(tmp_path / paths),)), tmp_path / root)
    assert [path.name for path in corpus.iterdir()] == ["a.txt"]


def test_an_output_below_a_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mk.py").write_text("x")
    with pytest.raises(MarinError, match=r"mk\.py: not a folder"):
        ingest(Source("web", (str(CASES / "plain.jsonl"),)), tmp_path / "mk.py")
    assert (tmp_path / "mk.py").read_text() == "x"
