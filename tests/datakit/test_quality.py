from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from marin import MarinError
from marin.datakit import QualityConfig, quality, score_quality
from marin.datakit.parts import read_part
from marin.engine import read_manifest

Make = Callable[..., Path]
COLUMNS = ["id", "score", "bucket", "kind"]


def test_buckets_of_a_kind_are_equal_and_ordered_by_score(
    make_documents: Make, tmp_path: Path
) -> None:
    prose = [
        "The cat sat there and it was good to be with the others. " * (i + 1) for i in range(50)
    ]
    code = [
        f"def total(values):\n    return [values, scale] * {i}\n" * (i % 9 + 1) for i in range(50)
    ]
    documents = make_documents(prose + code)
    directory = quality(score_quality(documents, tmp_path), tmp_path, QualityConfig())
    rows = read_part(directory / "part-00000.parquet", COLUMNS).to_pylist()
    for kind in (0, 1):
        of_kind = sorted((r["score"], r["bucket"]) for r in rows if r["kind"] == kind)
        assert len(of_kind) == 50
        assert [bucket for _, bucket in of_kind] == sorted(bucket for _, bucket in of_kind)
    summary = read_manifest(directory).summary
    assert sum(summary["buckets"]) == 100
    assert Counter(r["bucket"] for r in rows) == Counter(dict(enumerate(summary["buckets"])))


def test_thresholds_come_from_kept_documents_only(
    topics: Path, make_dedup: Make, tmp_path: Path
) -> None:
    scores = score_quality(topics, tmp_path)
    dedup = make_dedup(topics, frozenset(f"doc-{i:05d}" for i in range(0, 300, 2)))
    directory = quality(scores, tmp_path, QualityConfig(), dedup=dedup)
    assert sum(read_manifest(directory).summary["buckets"]) == 150


def test_equal_scores_share_a_bucket(make_documents: Make, tmp_path: Path) -> None:
    documents = make_documents(["same text"] * 7 + [None, ""])
    directory = quality(score_quality(documents, tmp_path), tmp_path, QualityConfig())
    table = read_part(directory / "part-00000.parquet", COLUMNS)
    assert len(np.unique(table["bucket"].to_numpy()[:7])) == 1
    assert table["score"].to_pylist()[7:] == [0.0, 0.0]


def test_no_buckets_is_one_line() -> None:
    with pytest.raises(MarinError, match="buckets = 0"):
        QualityConfig(buckets=0)
