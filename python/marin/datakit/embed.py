"""Embeddings of documents: int8 vectors of about unit length with a scale each."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from marin.datakit.embedders import LEXICAL, open_embedder
from marin.datakit.parts import write_sidecar
from marin.engine import Engine, Local, Progress, Silent, read_manifest, stage_directory
from marin.validation import check_range


@dataclass(frozen=True)
class EmbedConfig:
    """`model`: see `open_embedder`. `dimensions`: of the lexical embedding; the error of a cosine
    is about 1/sqrt(dimensions). `max_tokens` per text and `batch_tokens` per batch of a model."""

    model: str = "lexical"
    dimensions: int = 256
    max_tokens: int = 2048
    batch_tokens: int = 1 << 15

    def __post_init__(self) -> None:
        if self.model == LEXICAL:
            check_range("dimensions", self.dimensions, 16, 1 << 14)
        check_range("max_tokens", self.max_tokens, 1, 1 << 30)
        check_range("batch_tokens", self.batch_tokens, 1, 1 << 30)


def embedding_schema(dimensions: int) -> pa.Schema:
    item = pa.field("item", pa.int8(), nullable=False)
    return pa.schema(
        [
            pa.field("id", pa.string(), nullable=False),
            pa.field("embedding", pa.list_(item, dimensions)),
            pa.field("scale", pa.float32()),
        ]
    )


def embed(
    documents: Path,
    root: Path,
    config: EmbedConfig,
    *,
    dedup: Path | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the embedding sidecar (`id`, `embedding: fixed_size_list<int8>[D]`, `scale`).

    value = int8 * scale. A document without words is the zero vector with scale 0; one that
    `dedup` removed likewise.

    Raises:
      MarinError: a setting is wrong, or the model or its library is missing.
    """
    inputs = {"documents": read_manifest(documents).fingerprint}
    if dedup is not None:
        inputs["dedup"] = read_manifest(dedup).fingerprint
    with stage_directory(root, "embedding", asdict(config), inputs) as stage:
        if not stage.finished:
            settings = (config.model, config.dimensions, config.max_tokens, config.batch_tokens)
            dimensions = open_embedder(*settings).dimensions
            rows, _ = write_sidecar(
                stage,
                documents,
                ["text"],
                embedding_schema(dimensions),
                partial(_embed, settings),
                name="Embed",
                dedup=dedup,
                engine=engine or Local(),
                progress=progress or Silent(),
            )
            stage.finish(rows, {"dimensions": dimensions})
    return stage.path


def _embed(settings: tuple[str, int, int, int], batch: pa.RecordBatch) -> pa.RecordBatch:
    embedder = open_embedder(*settings)
    values, scales = embedder.embed(batch["text"])
    vectors = pa.FixedSizeListArray.from_arrays(
        pa.array(values.ravel(), pa.int8()), embedder.dimensions
    )
    return pa.record_batch(
        [batch["id"], vectors, pa.array(scales)], names=["id", "embedding", "scale"]
    )
