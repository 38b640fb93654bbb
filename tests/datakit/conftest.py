"""Small corpora as documents directories, and sidecars of the deduplication contract."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from marin.datakit.parts import PART_PATTERN, part_names, read_part, write_table
from marin.datakit.writer import DocumentWriter
from marin.engine import read_manifest, stage_directory
from marin.engine.manifest import fingerprint

TOPICS = (
    "the river flows past the old mill and the trees along the bank of the valley {}",
    "a neural network learns its weights by gradient descent on a loss function {}",
    "the court held that the contract was void and the party was liable for damages {}",
)

MakeDocuments = Callable[..., Path]


@pytest.fixture
def make_documents(tmp_path: Path) -> MakeDocuments:
    """`make(texts, sources=..., ids=..., parts=1)`: a finished documents directory."""

    def make(
        texts: Sequence[str | None],
        sources: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        parts: int = 1,
    ) -> Path:
        table = pa.table(
            {
                "id": pa.array(ids or [f"doc-{i:05d}" for i in range(len(texts))], pa.string()),
                "text": pa.array(texts, pa.large_string()),
                "source": pa.array(sources or ["web"] * len(texts), pa.string()),
            }
        )
        inputs = {"rows": fingerprint(table.to_pylist()), "parts": str(parts)}
        with stage_directory(tmp_path / "corpus", "documents", {}, inputs) as stage:
            if not stage.finished:
                rows = {}
                for part in range(parts):
                    chosen = table.slice(part * len(table) // parts).slice(
                        0, (part + 1) * len(table) // parts - part * len(table) // parts
                    )
                    pattern = PART_PATTERN.format(part)
                    with DocumentWriter(stage.path, pattern) as writer:
                        writer.write(chosen)
                    rows.update(writer.rows)
                stage.finish(rows)
        return stage.path

    return make


@pytest.fixture
def topics(make_documents: MakeDocuments) -> Path:
    """300 documents of three topics from two sources in two parts."""
    texts = [TOPICS[i % 3].format(f"number {i} of many, {i * 7 % 11}.") for i in range(300)]
    return make_documents(texts, ["web" if i % 2 else "books" for i in range(300)], parts=2)


@pytest.fixture
def make_dedup(tmp_path: Path) -> Callable[..., Path]:
    """`make(documents, removed)`: a sidecar that removes the ids in `removed`."""

    def make(
        documents: Path, removed: frozenset[str], clusters: dict[str, str] | None = None
    ) -> Path:
        inputs = {"documents": read_manifest(documents).fingerprint}
        parameters = {"removed": sorted(removed), "clusters": clusters or {}}
        with stage_directory(tmp_path / "corpus", "dedup", parameters, inputs) as stage:
            rows = {}
            for part in part_names(read_manifest(documents)):
                ids = read_part(documents / part, ["id"])["id"].to_pylist()
                names = [(clusters or {}).get(id_, "") for id_ in ids]
                write_table(
                    stage.path / part,
                    pa.table(
                        {
                            "id": ids,
                            "keep": pa.array([id_ not in removed for id_ in ids]),
                            "cluster": pa.array(names, pa.string()),
                            "representative": pa.array(names, pa.string()),
                            "similarity": pa.array([0.0] * len(ids), pa.float32()),
                            "reason": ["exact" if id_ in removed else "" for id_ in ids],
                        }
                    ),
                )
                rows[part] = len(ids)
            stage.finish(rows)
        return stage.path

    return make
