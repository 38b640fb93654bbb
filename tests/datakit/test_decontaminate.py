from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from marin import MarinError
from marin.datakit import (
    DecontaminateConfig,
    decontaminate,
    find_matches,
    materialize,
)
from marin.datakit.dedup import dedup
from marin.datakit.parts import part_names, read_part
from marin.engine import Local, read_manifest

Make = Callable[..., Path]
ITEM = "which of the seven brothers planted the first apple tree behind the old stone house"
BOILERPLATE = "answer the following question by choosing the one best option from the list below"
COLUMNS = ["id", "keep", "reason", "representative", "similarity", "evidence"]


def _rows(directory: Path, columns: Sequence[str] = COLUMNS) -> list[dict[str, object]]:
    parts = part_names(read_manifest(directory))
    return [row for part in parts for row in read_part(directory / part, columns).to_pylist()]


def _run(
    documents: Path, evaluation: Path, root: Path, config: DecontaminateConfig | None = None
) -> Path:
    config = config or DecontaminateConfig()
    matches = find_matches(documents, [evaluation], root, config, engine=Local(2))
    return decontaminate(documents, matches, [evaluation], root, config)


def test_copies_of_items_go_and_boilerplate_stays(make_documents: Make, tmp_path: Path) -> None:
    evaluation = make_documents([f"{BOILERPLATE} {ITEM}"], ids=["item"])
    texts = [f"{BOILERPLATE} and then number {i}" for i in range(40)]
    texts[3] = f"Quiz — {ITEM.title()}? {BOILERPLATE}"
    texts[30] = f"{BOILERPLATE} {ITEM}"
    documents = make_documents(texts, parts=2)
    directory = _run(documents, evaluation, tmp_path, DecontaminateConfig(n=8, guard=0.001))
    rows = _rows(directory)
    assert [row["id"] for row in rows if not row["keep"]] == ["doc-00003", "doc-00030"]
    assert {(row["reason"], row["representative"]) for row in rows} == {
        ("", None),
        ("contaminated", "item"),
    }
    assert str(rows[3]["evidence"]).startswith("Which Of The Seven Brothers")
    summary = read_manifest(directory).summary
    assert (summary["kept"], summary["removed_contaminated"]) == (38, 2)
    assert summary["boilerplate_grams"] > 0


@pytest.mark.parametrize("engine", [None, Local(2)])
def test_no_clean_document_goes_for_a_contaminated_one(
    make_documents: Make, tmp_path: Path, engine: Local | None
) -> None:
    text = " ".join(f"word{i * i % 997}" for i in range(400))
    changed = text.replace("word4 ", "other ")
    texts = [f"{text} {ITEM}", text, changed, f"{changed} {ITEM}", "", f"{text} {ITEM}"]
    documents = make_documents(texts, ["web", "web", "web", "books", "web", "web"], parts=2)
    removed = _run(documents, make_documents([ITEM], ids=["item"]), tmp_path)
    directory = dedup([documents], tmp_path, removed=removed, engine=engine)
    rows = {str(row["id"]): row for row in _rows(directory, COLUMNS[:-1])}
    reasons = ["contaminated", "", "fuzzy", "contaminated", "", "contaminated"]
    assert [row["reason"] for row in rows.values()] == reasons
    assert [row["keep"] for row in rows.values()] == [reason == "" for reason in reasons]
    assert [rows[f"doc-0000{i}"]["representative"] for i in (0, 2)] == ["item", "doc-00001"]
    alone = make_documents([texts[1], texts[2]], ids=["doc-00001", "doc-00002"])
    others = {row["id"]: row for row in _rows(dedup([alone], tmp_path), COLUMNS[:-1])}
    assert all(rows[str(name)] == row for name, row in others.items())
    summary = read_manifest(directory).summary
    assert summary["removed_contaminated"] == 3
    assert (summary["documents"], summary["kept"], summary["removed_fuzzy"]) == (6, 2, 1)
    assert [row["removed_before"] for row in summary["by_source"]] == [1, 2]
    assert summary["cluster_sizes"] == [[2, 1]]
    materialized = materialize(documents, directory, tmp_path)
    assert read_manifest(materialized).summary["documents"] == 2


def test_sidecars_of_other_documents_are_refused(
    make_documents: Make, make_dedup: Make, tmp_path: Path
) -> None:
    documents = make_documents(["a", "b"])
    fewer = make_dedup(make_documents(["a"]), frozenset())
    with pytest.raises(MarinError, match="1 rows for 2 documents"):
        dedup([documents], tmp_path, removed=fewer)
    others = make_dedup(make_documents(["a", "b"], ids=["x", "y"]), frozenset({"y"}))
    with pytest.raises(MarinError, match="row 0 is document y, expected doc-00001"):
        dedup([documents], tmp_path, removed=others)


def test_nothing_is_found_where_there_is_nothing(make_documents: Make, tmp_path: Path) -> None:
    documents = make_documents(["clean text of some words", None, ""])
    for items in (["too short"], [None], [ITEM]):
        evaluation = make_documents(items, ids=["item"])
        directory = _run(documents, evaluation, tmp_path)
        assert all(row["keep"] for row in _rows(directory))


def test_wrong_settings_name_the_key() -> None:
    with pytest.raises(MarinError, match="n = 5"):
        DecontaminateConfig(n=5)
    with pytest.raises(MarinError, match="threshold = 0"):
        DecontaminateConfig(threshold=0)
