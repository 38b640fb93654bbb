from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from marin import MarinError
from marin.datakit import QualityConfig, Source, ingest, quality, score_quality, train_quality
from marin.datakit.parts import read_part
from marin.engine import read_manifest

GOOD = "the proof follows from the lemma since every bounded sequence has a limit {}"
BAD = "click here to buy cheap pills now free offer best price limited {}"


def _labelled(folder: Path, labels: list[Any]) -> Path:
    texts = [(GOOD if i % 2 else BAD).format(i) for i in range(len(labels))]
    path = folder / "labelled.arrow"
    table = pa.table({"text": texts, "label": labels})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return ingest(Source("labelled", (str(path),)), folder)


def test_a_classifier_learns_the_labels_and_decides_the_buckets(tmp_path: Path) -> None:
    labelled = _labelled(tmp_path, [bool(i % 2) for i in range(300)])
    model = train_quality(labelled, tmp_path)
    summary = read_manifest(model).summary
    assert summary["auc"] > 0.99
    assert 15 <= summary["held_out"] <= 45
    again = train_quality(labelled, tmp_path / "again")
    assert read_manifest(again).fingerprint == read_manifest(model).fingerprint
    scores = score_quality(labelled, tmp_path, classifier=model)
    directory = quality(scores, tmp_path, QualityConfig(buckets=2))
    rows = read_part(directory / "part-00000.parquet", ["score", "bucket"]).to_pylist()
    assert all((row["score"] > 0.5) == bool(i % 2) for i, row in enumerate(rows))
    assert sum(row["bucket"] == i % 2 for i, row in enumerate(rows)) > 290


@pytest.mark.parametrize(
    ("labels", "match"),
    [([1] * 60, "all of one label"), ([0, 2] * 30, "other than 0 or 1"), ([[1], [0]], "label is")],
)
def test_unusable_labels_are_one_line(tmp_path: Path, labels: list[Any], match: str) -> None:
    with pytest.raises(MarinError, match=match) as error:
        train_quality(_labelled(tmp_path, labels), tmp_path)
    assert "\n" not in str(error.value)


def test_a_directory_without_labels_or_model_is_one_line(topics: Path, tmp_path: Path) -> None:
    with pytest.raises(MarinError, match="no column 'label'"):
        train_quality(topics, tmp_path)
    with pytest.raises(MarinError, match="not a directory of train-quality"):
        score_quality(topics, tmp_path, classifier=topics)
