from collections.abc import Callable
from pathlib import Path

import pytest

from marin import MarinError
from marin.datakit import DecontaminateConfig, decontaminate, find_matches
from marin.datakit.parts import part_names, read_part
from marin.engine import Local, read_manifest

Make = Callable[..., Path]
ITEM = "which of the seven brothers planted the first apple tree behind the old stone house"
BOILERPLATE = "answer the following question by choosing the one best option from the list below"
COLUMNS = ["id", "keep", "reason", "representative", "similarity", "evidence"]


def _rows(directory: Path) -> list[dict[str, object]]:
    parts = part_names(read_manifest(directory))
    return [row for part in parts for row in read_part(directory / part, COLUMNS).to_pylist()]


def _run(
    documents: Path, evaluation: Path, root: Path, config: DecontaminateConfig, dedup: Path | None
) -> Path:
    matches = find_matches(documents, [evaluation], root, config, engine=Local(2))
    return decontaminate(documents, matches, [evaluation], root, config, dedup=dedup)


def test_copies_of_items_go_and_boilerplate_stays(
    make_documents: Make, make_dedup: Make, tmp_path: Path
) -> None:
    evaluation = make_documents([f"{BOILERPLATE} {ITEM}"], ids=["item"])
    texts = [f"{BOILERPLATE} and then number {i}" for i in range(40)]
    texts[3] = f"Quiz — {ITEM.title()}? {BOILERPLATE}"
    texts[30] = f"{BOILERPLATE} {ITEM}"
    documents = make_documents(texts, parts=2)
    dedup = make_dedup(documents, frozenset({"doc-00030"}))
    config = DecontaminateConfig(n=8, guard=0.001)
    directory = _run(documents, evaluation, tmp_path, config, dedup)
    rows = _rows(directory)
    assert [row["id"] for row in rows if not row["keep"]] == ["doc-00003", "doc-00030"]
    assert rows[3]["reason"] == "contaminated"
    assert rows[3]["representative"] == "item"
    assert str(rows[3]["evidence"]).startswith("Which Of The Seven Brothers")
    assert rows[30]["reason"] == "exact"
    summary = read_manifest(directory).summary
    assert (summary["kept"], summary["removed_contaminated"], summary["removed_exact"]) == (
        38,
        1,
        1,
    )
    assert summary["boilerplate_grams"] > 0


def test_nothing_is_found_where_there_is_nothing(make_documents: Make, tmp_path: Path) -> None:
    documents = make_documents(["clean text of some words", None, ""])
    for items in (["too short"], [None], [ITEM]):
        evaluation = make_documents(items, ids=["item"])
        directory = _run(documents, evaluation, tmp_path, DecontaminateConfig(), None)
        assert all(row["keep"] for row in _rows(directory))


def test_wrong_settings_name_the_key() -> None:
    with pytest.raises(MarinError, match="n = 5"):
        DecontaminateConfig(n=5)
    with pytest.raises(MarinError, match="threshold = 0"):
        DecontaminateConfig(threshold=0)
