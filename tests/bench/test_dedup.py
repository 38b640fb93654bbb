"""The benchmark's truth and its judgement, on a corpus small enough to count by hand."""

import statistics
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.bench.dedup import BenchConfig, measure
from marin.bench.dedup.corpus import _texts
from marin.bench.dedup.truth import Truth, select_documents
from marin.engine import Silent
from marin.errors import MarinError


def words(start: int, count: int) -> str:
    return " ".join(f"w{i}" for i in range(start, start + count))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Documents 0 and 1 share 47 of 51 shingles; 2 is alike neither; 3 repeats 0."""
    texts = [words(0, 52), words(1, 54), words(500, 60), words(0, 52).upper()]
    table = pa.table(
        {
            "id": [f"d{i}" for i in range(4)],
            "text": pa.array(texts, pa.large_string()),
            "source": ["s"] * 4,
            "path": [f"p{i}" for i in range(4)],
        }
    )
    path = tmp_path / "part.parquet"
    pq.write_table(table, path)
    return path


def test_truth_is_all_pairs_of_exactly_distinct_documents(corpus: Path, tmp_path: Path) -> None:
    chosen = select_documents([corpus], 10, tmp_path / "chosen.parquet")
    ids = pq.read_table(chosen)["id"].to_pylist()
    assert len(ids) == 3
    assert len({"d0", "d3"} & set(ids)) == 1
    truth = Truth(chosen, 0.8)
    assert [{ids[a], ids[b]} for a, b in truth.pairs] == [{"d1", *({"d0", "d3"} & set(ids))}]


def test_judgement_counts_missed_pairs_and_removals_without_a_twin(corpus: Path) -> None:
    truth = Truth(corpus, 0.8)
    nothing = truth.judge(np.ones(4, bool))
    assert (nothing.recall, nothing.precision, nothing.missed) == (0.0, 1.0, 3)
    right = truth.judge(np.array([False, True, True, False]))
    assert (right.recall, right.precision, right.orphans) == (1.0, 1.0, 0)
    too_much = truth.judge(np.array([False, True, False, False]))
    assert (too_much.recall, too_much.orphans) == (1.0, 1)


def test_text_files_of_a_wheel_become_documents(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("a/long.py", "x = 1\n" * 50)
        archive.writestr("a/short.py", "x")
        archive.writestr("a/binary.so", b"\0" * 500)
        archive.writestr("a/latin.txt", b"\xe9" * 500)
    assert [row[0] for row in _texts(wheel, "a", "1.0")] == ["a/1.0/a/long.py"]


def test_an_unknown_tool_is_named(corpus: Path) -> None:
    with pytest.raises(MarinError, match="nosuchtool: unknown"):
        measure([corpus], ["nosuchtool"], BenchConfig(), progress=Silent())


def test_a_measurement_names_what_it_found_and_each_value_is_the_median_of_its_runs(
    corpus: Path,
) -> None:
    config = BenchConfig(documents=10, peer_megabytes=1, runs=2)
    report = measure([corpus], [], config, progress=Silent())
    speeds = ("all", "all_with_memory_1GiB", "half", "quarter", "part")
    units = {f"{name}_speed": "MB/s" for name in speeds} | {f"{name}_peak": "MB" for name in speeds}
    units |= {f"{name}_stage_speed": "MB/s" for name in ("signature", "verification")}
    measured = set(units)
    units |= {"recall": "share", "precision": "share", "orphans": "documents", "missed": "pairs"}
    lines = {line["metric"]: line for line in report["results"]}
    assert {metric: line["unit"] for metric, line in lines.items()} == units
    assert {metric for metric, line in lines.items() if len(line["runs"]) == 2} == measured
    for line in lines.values():
        assert line["value"] == statistics.median(line["runs"])
    assert (lines["recall"]["value"], lines["orphans"]["value"]) == (1.0, 0.0)
    assert (report["corpus"]["documents"], report["corpus"]["true_pairs"]) == (4, 1)
