"""Small inputs that broke other deduplicators; see tests/cases/dedup."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.datakit.dedup import DedupConfig, dedup
from marin.engine import read_manifest

CASES = json.loads((Path(__file__).parents[2] / "cases" / "dedup" / "kinds.json").read_text())

PEAKS = """
import sys
from pathlib import Path
from marin.bench.machine import peak_bytes
from marin.datakit.dedup import dedup
root = Path(sys.argv[1])
for name in ("small", "large"):
    dedup([root / name], root)
    print(peak_bytes())
"""


def write(path: Path, texts: list, ids: list[str] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    ids = ids or [f"{i:06d}" for i in range(len(texts))]
    table = pa.table({"id": ids, "text": pa.array(texts, pa.large_string())})
    pq.write_table(table, path)
    return path


def removed(out: Path, name: str = "a.parquet") -> list[int]:
    keep = pq.read_table(out / name)["keep"].to_pylist()
    return [row for row, kept in enumerate(keep) if not kept]


@pytest.mark.parametrize("name", CASES)
def test_known_kind(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    out = dedup([write(tmp_path / "a.parquet", case["texts"])], tmp_path)
    assert removed(out) == case["removed"], case["why"]


def test_an_input_without_documents_gives_an_empty_sidecar(tmp_path: Path) -> None:
    out = dedup([write(tmp_path / "a.parquet", [])], tmp_path)
    assert pq.read_table(out / "a.parquet").num_rows == 0
    assert read_manifest(out).summary["documents"] == 0


def test_bytes_that_are_not_utf8_are_separators(tmp_path: Path) -> None:
    surrogate = b"one two three four five \xed\xa0\x80 six"
    texts = pa.array([surrogate, b"one two three four five six", b"\xff\xfe", b"\xff"], pa.binary())
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "text": texts}), tmp_path / "a.parquet")
    out = dedup([tmp_path / "a.parquet"], tmp_path)
    assert removed(out) == [1]
    assert "six" in read_manifest(out).summary["examples"][0]["removed_text"]


def test_a_chain_keeps_its_far_end(tmp_path: Path) -> None:
    """A ~ B ~ C with A unlike C: B goes for A, and C stays, since its twin B is not kept."""
    words = [f"word{i}" for i in range(130)]
    a, b, c = words[:110], words[8:117], words[16:124]
    out = dedup([write(tmp_path / "a.parquet", [" ".join(text) for text in (a, b, c)])], tmp_path)
    rows = pq.read_table(out / "a.parquet").to_pylist()
    assert [row["keep"] for row in rows] == [True, False, True]
    assert rows[1]["representative"] == "000000"


def test_one_very_long_document_beside_many_small_ones(tmp_path: Path) -> None:
    long = " ".join(f"w{i * 7919 % 100_003}" for i in range(300_000))
    small = [f"note {i} says that item {i * i} is in room {i % 17} today" for i in range(1000)]
    path = write(tmp_path / "a.parquet", [*small, long, long[: len(long) * 95 // 100], small[7]])
    out = dedup([path], tmp_path, DedupConfig(memory=1 << 20))
    assert removed(out) == [1001, 1002]


def test_a_document_of_50_mb_costs_less_than_500_mb(tmp_path: Path) -> None:
    small = [f"note {i} says that item {i * i} is in room {i % 17} today" for i in range(1000)]
    write(tmp_path / "small" / "a.parquet", small)
    long = " ".join(map(str, range(10**7, 10**7 + 50_000_000 // 9)))
    write(tmp_path / "large" / "a.parquet", [*small, long])
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert after - before < 500_000_000
