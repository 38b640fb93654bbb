"""A quality classifier from a labelled sample: logistic regression on lexical embeddings.

The model is one small JSON file of weights; scoring is a matrix product, so it costs little more
than the embedding. Scores are probabilities of the good label.
"""

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from marin._native import document_keys, lexical_embedding
from marin.datakit.parts import part_names, read_groups
from marin.engine import Progress, Silent, read_manifest, stage_directory, write_json
from marin.errors import MALFORMED, MarinError

MODEL = "classifier.json"
_DIMENSIONS = 1024
_HELD_OUT = 0.1
# Weights are stored with so many significant digits, more than the int8 embedding resolves.
_DIGITS = 7


def train_quality(
    labelled: Path, root: Path, *, seed: int = 0, progress: Progress | None = None
) -> Path:
    """Trains on a documents directory with a column `label`: 0 for bad, 1 for good.

    A tenth, drawn by a hash of the id, is held out; the summary has its accuracy and the area
    under its ROC curve. Memory: 4 KiB per labelled document.

    Raises:
      MarinError: there is no such column, another value in it, or not both labels in both parts.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from threadpoolctl import threadpool_limits

    progress = progress or Silent()
    inputs = {"labelled": read_manifest(labelled).fingerprint}
    with stage_directory(root, "classifier", {"seed": seed}, inputs) as stage:
        if not stage.finished:
            with progress.task("Train classifier", total=None) as task, threadpool_limits(1):
                vectors, labels, keys = _examples(labelled, seed)
                held_out = keys < np.uint64(_HELD_OUT * 2**64)
                for part, name in ((~held_out, "trained on"), (held_out, "held out")):
                    if len(np.unique(labels[part])) < 2:
                        raise MarinError(
                            f"{labelled}: {int(part.sum())} documents {name}, all of one label; "
                            "label more of both kinds"
                        )
                model = LogisticRegression(max_iter=1000)
                model.fit(vectors[~held_out], labels[~held_out])
                scores = model.predict_proba(vectors[held_out])[:, 1]
                task.advance(1)
            weights = [float(f"{w:.{_DIGITS}g}") for w in model.coef_[0]]
            bias = float(f"{model.intercept_[0]:.{_DIGITS}g}")
            write_json(stage.path / MODEL, {"weights": weights, "bias": bias})
            summary = {
                "documents": len(labels),
                "good": int(labels.sum()),
                "held_out": int(held_out.sum()),
                "accuracy": round(float(((scores >= 0.5) == labels[held_out]).mean()), 4),
                "auc": round(float(roc_auc_score(labels[held_out], scores)), 4),
            }
            stage.finish({MODEL: 1}, summary)
    return stage.path


def classify(directory: Path, texts: pa.Array) -> pa.Array:
    """float32 probability of the good label for each text."""
    weights, bias = _model(directory)
    vectors = _vectors(texts, len(weights))
    return pa.array((1 / (1 + np.exp(-(vectors @ weights + bias)))).astype(np.float32))


def _examples(labelled: Path, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    vectors, labels, keys = [], [], []
    for part in part_names(read_manifest(labelled)):
        for batch in read_groups(labelled / part, ["id", "text", "label"]):
            try:
                label = batch["label"].cast(pa.int64())
            except pa.ArrowException:
                raise MarinError(
                    f"{labelled / part}: label is {batch['label'].type}: expected 0 or 1"
                ) from None
            if label.null_count or not set(label.unique().to_pylist()) <= {0, 1}:
                raise MarinError(f"{labelled / part}: a label other than 0 or 1")
            vectors.append(_vectors(batch["text"], _DIMENSIONS))
            labels.append(label.to_numpy())
            keys.append(np.asarray(pa.array(document_keys(batch["id"], seed))))
    return np.concatenate(vectors), np.concatenate(labels), np.concatenate(keys)


def _vectors(texts: pa.Array, dimensions: int) -> np.ndarray:
    found = pa.record_batch(lexical_embedding(texts, dimensions, 0))
    values = found["embedding"].flatten().to_numpy().reshape(-1, dimensions)
    vectors: np.ndarray = values.astype(np.float32) * found["scale"].to_numpy()[:, None]
    return vectors


@lru_cache(maxsize=2)
def _model(directory: Path) -> tuple[np.ndarray, float]:
    try:
        raw: dict[str, Any] = json.loads((directory / MODEL).read_text())
        return np.array(raw["weights"], dtype=np.float32), float(raw["bias"])
    except (OSError, *MALFORMED) as error:
        raise MarinError(f"{directory}: not a directory of train-quality ({error})") from None
