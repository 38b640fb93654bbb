"""A saved index: later corpora lose what an earlier one kept, as if both were one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin._native import xxh3_file
from marin.datakit.dedup import DedupConfig, Shingling, dedup, locations, run, save_index
from marin.datakit.dedup.inputs import for_each_batch
from marin.engine import Local, Silent, read_manifest
from marin.errors import MarinError


def text(number: int, changed: int = 0, length: int = 80) -> str:
    words = [f"t{number}w{i}" for i in range(length)]
    words[:changed] = [f"changed{number}x{i}" for i in range(changed)]
    return " ".join(words)


def write(path: Path, texts: list[str]) -> Path:
    ids = [f"{path.stem}-{i}" for i in range(len(texts))]
    sources = pa.array([path.stem] * len(texts))
    table = pa.table({"id": ids, "text": texts, "source": sources})
    pq.write_table(table, path, row_group_size=4)
    return path


@pytest.fixture
def earlier(tmp_path: Path) -> tuple[Path, Path]:
    """(documents, index) of a corpus in which documents 1 and 9 repeat others."""
    texts = [text(i) for i in range(10)]
    texts[1], texts[9] = texts[0], text(8, changed=2)
    path = write(tmp_path / "old.parquet", texts)
    return path, save_index([path], dedup([path], tmp_path), tmp_path / "index")


def test_later_documents_go_for_kept_ones_of_the_index(earlier, tmp_path: Path) -> None:
    _, index = earlier
    # Longer than its twin in the index, which is kept all the same.
    longer = text(5) + " and some more words"
    new = write(tmp_path / "new.parquet", [text(3), text(7, changed=1), text(50), longer, text(50)])
    for memory in (1 << 20, 1 << 28):
        config = DedupConfig(memory=memory)
        out = dedup([new], tmp_path / str(memory), config, against=[index])
        rows = pq.read_table(out / "new.parquet").to_pylist()
        found = [(row["reason"], row["representative"]) for row in rows]
        assert found == [
            ("exact", "old-3"),
            ("fuzzy", "old-7"),
            ("", None),
            ("fuzzy", "old-5"),
            ("exact", "new-2"),
        ]
    summary = read_manifest(out).summary
    assert (summary["documents"], summary["kept"]) == (5, 1)
    twins = {pair["kept"]: pair["kept_text"] for pair in summary["examples"]}
    assert twins["old-7"].startswith("t7w0 t7w1")


def test_without_an_index_passes_share_nothing(earlier, tmp_path: Path) -> None:
    new = write(tmp_path / "new.parquet", [text(3), text(4)])
    assert read_manifest(dedup([new], tmp_path)).summary["kept"] == 2


def test_an_index_made_otherwise_is_refused(earlier, tmp_path: Path) -> None:
    old, index = earlier
    new = write(tmp_path / "new.parquet", [text(3)])
    for config, name in [
        (DedupConfig(seed=2), "seed"),
        (DedupConfig(shingling=Shingling(words=3)), "shingle_words"),
        (DedupConfig(threshold=0.5), "bands"),
    ]:
        with pytest.raises(MarinError, match=f"index of {name}"):
            dedup([new], tmp_path / "root", config, against=[index])
    with pytest.raises(MarinError, match="not an index"):
        dedup([new], tmp_path / "root", against=[dedup([old], tmp_path)])
    again = write(tmp_path / "again.parquet", ["some words"])
    pq.write_table(pa.table({"id": ["old-3"], "text": ["some words"]}), again)
    with pytest.raises(MarinError, match=r"old.parquet, row 3, of the index .* 'old-3' again"):
        dedup([again], tmp_path / "root", against=[index])
    old.unlink()
    with pytest.raises(MarinError, match=r"old\.parquet"):
        dedup([new], tmp_path / "root", against=[index])


@pytest.mark.parametrize("by_url", [False, True])
def test_an_index_of_documents_that_changed_is_refused(by_url: bool, tmp_path: Path) -> None:
    old = write(tmp_path / "old.parquet", [text(0), text(1)])
    place = old.as_uri() if by_url else old
    index = save_index([place], dedup([place], tmp_path), tmp_path / "index")
    new = write(tmp_path / "new.parquet", [text(1, changed=1)])
    if not by_url:
        os.utime(old)
        dedup([new], tmp_path / "touched", against=[index])
    for texts in ([text(0), text(2)], [text(0)]):
        write(old, texts)
        with pytest.raises(MarinError, match=r"old\.parquet: has changed since the index .*index"):
            dedup([new], tmp_path / "changed", against=[index])


@pytest.mark.parametrize(
    ("after", "by_url"), [("checksum", False), ("signing", False), ("signing", True)]
)
def test_a_file_that_changes_while_its_index_is_made_is_refused(
    after: str, by_url: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write(tmp_path / "old.parquet", [text(0), text(1)])
    place = old.as_uri() if by_url else old
    sidecars = dedup([place], tmp_path)

    def change() -> None:
        write(old, [text(0), text(2)])

    class Signing(Silent):
        @contextmanager
        def task(self, name: str, total: int | None) -> Iterator[Silent]:
            del name, total
            yield self
            if after == "signing":
                change()

    def checksum(path: Path) -> str:
        found = xxh3_file(path)
        monkeypatch.undo()
        change()
        return found

    if after == "checksum":
        monkeypatch.setattr(locations, "xxh3_file", checksum)
    with pytest.raises(MarinError, match=r"old\.parquet: has changed since .*save a new index"):
        save_index([place], sidecars, tmp_path / "index", progress=Signing())


def test_a_document_that_is_gone_when_it_is_read_again_is_named(
    earlier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, index = earlier
    new = write(tmp_path / "new.parquet", [text(50), text(7, changed=1)])

    def losing(groups, columns, threads, work) -> None:
        if columns is None or groups[0].file.location != lost:
            for_each_batch(groups, columns, threads, work)

    monkeypatch.setattr(run, "for_each_batch", losing)
    config = DedupConfig(memory=1 << 20)
    for lost, row in ((str(old), 7), (str(new), 1)):
        # All sets are read again, as those of signed documents are.
        with pytest.raises(MarinError, match=rf"{lost}, row {row}.*: no longer there"):
            dedup([new], tmp_path, config, against=[index], engine=Local(2))
