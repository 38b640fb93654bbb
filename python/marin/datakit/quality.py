"""Quality: a documented score in 0..1, and five buckets per kind of content.

The score grades the filter rules of Gopher, C4, FineWeb and Codex (see the Rust module
`quality`). Thresholds between buckets are quantiles of the kept documents of one kind (prose,
code, data), so that code is compared with code. Bucket 0 is the lowest.
"""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from marin._native import QUALITY_KINDS, quality_rules, quality_scores
from marin.datakit.classifier import classify
from marin.datakit.parts import kept_mask, part_names, read_part, write_sidecar, write_table
from marin.engine import Engine, Local, Progress, Silent, read_manifest, stage_directory
from marin.validation import check_range

SCORE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("score", pa.float32()),
        pa.field("kind", pa.uint8()),
        pa.field("broken", pa.uint32()),
    ]
)
# Scores are binned this finely to find quantiles in memory that does not grow with the corpus.
_BINS = 1 << 16


@dataclass(frozen=True)
class QualityConfig:
    """`buckets` of equal document counts within each kind of content."""

    buckets: int = 5

    def __post_init__(self) -> None:
        check_range("buckets", self.buckets, 1, 100)


def score_quality(
    documents: Path,
    root: Path,
    *,
    classifier: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the score sidecar: `id`, `score`, `kind` (index into prose, code, data) and `broken`
    (bit i: the published threshold of rule i of `quality_rules()` is broken).

    The score is the graded mean of the rules, or with a directory of `train_quality` its
    classifier's probability.
    """
    inputs = {"documents": read_manifest(documents).fingerprint}
    if classifier is not None:
        inputs["classifier"] = read_manifest(classifier).fingerprint
    parameters = {"rules": [list(rule) for rule in quality_rules()]}
    with stage_directory(root, "scores", parameters, inputs) as stage:
        if not stage.finished:
            rows, _ = write_sidecar(
                stage,
                documents,
                ["text"],
                SCORE_SCHEMA,
                partial(_score, classifier),
                name="Score quality",
                engine=engine or Local(),
                progress=progress or Silent(),
            )
            stage.finish(rows)
    return stage.path


def _score(classifier: Path | None, batch: pa.RecordBatch) -> pa.RecordBatch:
    scored = pa.record_batch(quality_scores(batch["text"], 0))
    score = scored["score"] if classifier is None else classify(classifier, batch["text"])
    columns = [batch["id"], score, scored["kind"], scored["broken"]]
    return pa.record_batch(columns, names=SCORE_SCHEMA.names)


def quality(
    scores: Path,
    root: Path,
    config: QualityConfig,
    *,
    dedup: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the quality sidecar: `id`, `score`, `bucket: uint8`, `kind`, from a score sidecar.

    Thresholds are quantiles over the documents that `dedup` kept; removed ones get a bucket too.
    """
    progress = progress or Silent()
    manifest = read_manifest(scores)
    inputs = {"scores": manifest.fingerprint}
    if dedup is not None:
        inputs["dedup"] = read_manifest(dedup).fingerprint
    with stage_directory(root, "quality", asdict(config), inputs) as stage:
        if not stage.finished:
            histogram = _histogram(scores, part_names(manifest), dedup)
            thresholds = np.stack([_quantiles(row, config.buckets) for row in histogram])
            counts = np.zeros((len(QUALITY_KINDS), config.buckets), dtype=np.int64)
            rows = {}
            with progress.task("Quality buckets", total=manifest.rows) as task:
                for part in part_names(manifest):
                    table = read_part(scores / part, ["id", "score", "kind"])
                    kinds = table["kind"].to_numpy()
                    bins = _bins(table["score"].to_numpy())
                    buckets = (bins[:, None] >= thresholds[kinds]).sum(axis=1).astype(np.uint8)
                    kept = kept_mask(dedup, part, table["id"])
                    np.add.at(counts, (kinds[kept], buckets[kept]), 1)
                    if not (stage.path / part).exists():
                        columns = [table["id"], table["score"], pa.array(buckets), table["kind"]]
                        names = ["id", "score", "bucket", "kind"]
                        write_table(stage.path / part, pa.table(columns, names=names))
                    rows[part] = pq.read_metadata(stage.path / part).num_rows
                    task.advance(len(table))
            stage.finish(rows, _summary(thresholds, counts))
    return stage.path


def _bins(scores: np.ndarray) -> np.ndarray:
    return np.rint(scores.astype(np.float64) * (_BINS - 1)).astype(np.int64)


def _histogram(scores: Path, parts: list[str], dedup: Path | None) -> np.ndarray:
    """Kept documents per kind and score bin, int64 [kinds, bins]."""
    histogram = np.zeros((len(QUALITY_KINDS), _BINS), dtype=np.int64)
    for part in parts:
        table = read_part(scores / part, ["id", "score", "kind"])
        table = table.filter(pa.array(kept_mask(dedup, part, table["id"])))
        np.add.at(histogram, (table["kind"].to_numpy(), _bins(table["score"].to_numpy())), 1)
    return histogram


def _quantiles(counts: np.ndarray, buckets: int) -> np.ndarray:
    """The lowest bin of each bucket but the first: a document is in the bucket whose share of the
    documents below it has begun."""
    below = np.concatenate([[0], np.cumsum(counts)])
    wanted = np.arange(1, buckets) * below[-1] / buckets
    bins: np.ndarray = np.searchsorted(below[:-1], wanted, side="left")
    return bins


def _summary(thresholds: np.ndarray, counts: np.ndarray) -> dict[str, Any]:
    return {
        "kinds": [
            {
                "kind": kind,
                "thresholds": [round(float(t) / (_BINS - 1), 6) for t in thresholds[index]],
                "documents": counts[index].tolist(),
            }
            for index, kind in enumerate(QUALITY_KINDS)
        ],
        "buckets": counts.sum(axis=0).tolist(),
    }
