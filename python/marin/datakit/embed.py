"""Embeddings of documents: int8 vectors of about unit length with a scale each."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa

from marin._native import lexical_embedding
from marin.datakit.parts import write_sidecar
from marin.engine import Engine, Local, Progress, Silent, read_manifest, stage_directory
from marin.errors import MarinError


@dataclass(frozen=True)
class EmbedConfig:
    """`dimensions`: of the lexical embedding; the error of a cosine is about 1/sqrt(dimensions)."""

    dimensions: int = 256


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
    """
    if not 16 <= config.dimensions <= 1 << 14:
        raise MarinError(f"dimensions = {config.dimensions}: expected 16 to 16384")
    inputs = {"documents": read_manifest(documents).fingerprint}
    if dedup is not None:
        inputs["dedup"] = read_manifest(dedup).fingerprint
    parameters = {"kind": "lexical", **asdict(config)}
    schema = embedding_schema(config.dimensions)

    with stage_directory(root, "embedding", parameters, inputs) as stage:
        if not stage.finished:
            rows, _ = write_sidecar(
                stage,
                documents,
                ["text"],
                schema,
                partial(_lexical, config.dimensions),
                name="Embed",
                dedup=dedup,
                engine=engine or Local(),
                progress=progress or Silent(),
            )
            stage.finish(rows, {"dimensions": config.dimensions})
    return stage.path


def _lexical(dimensions: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    vectors = pa.record_batch(lexical_embedding(batch["text"], dimensions, 0))
    return pa.record_batch([batch["id"], *vectors.columns], names=["id", "embedding", "scale"])
