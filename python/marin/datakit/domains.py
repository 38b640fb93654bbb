"""Domains: fine k-means on a stratified sample, coarsened to few spherical clusters.

1. Embeddings are centred on the sample's mean and scaled to unit length.
2. scikit-learn's k-means finds fine centroids on the sample (on one thread: its sums would
   depend on the number of threads).
3. All kept documents are assigned to their nearest fine centroid.
4. The fine centroids, weighted by their documents, are grouped into domains of at least a
   minimum share each (`coarsen_centroids`, Rust).

Domains are numbered from the largest and named by the terms that distinguish their documents.
"""

import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin._native import coarsen_centroids, distinctive_terms, document_keys, nearest_centroids
from marin.datakit.parts import (
    check_same_rows,
    kept_mask,
    part_names,
    read_groups,
    read_part,
    write_table,
)
from marin.engine import Progress, Silent, StageDir, atomic_file, read_manifest, stage_directory
from marin.errors import MarinError
from marin.validation import check_range

_CENTROIDS = "centroids.arrow"
# A fine cluster should hold this many documents of the sample.
_DOCUMENTS_PER_CENTROID = 20
_KMEANS_ROUNDS = 25
_RESTARTS = 8
_TERMS = 8
_NAME_TERMS = 3
_EXAMPLES = 3
_EXAMPLE_CHARACTERS = 200
# Documents read to name the domains.
_NAMED_DOCUMENTS = 20_000


@dataclass(frozen=True)
class DomainsConfig:
    """`domains` wanted, each of at least `minimum_share` of the kept documents (fewer come out
    where that is impossible); `fine`: k-means centroids, at most one per 20 sampled documents."""

    domains: int = 40
    fine: int = 5000
    minimum_share: float = 0.01
    sample: int = 200_000
    seed: int = 0

    def __post_init__(self) -> None:
        check_range("domains", self.domains, 1, 100)
        check_range("fine", self.fine, 1, 65_536)
        check_range("sample", self.sample, 1, 10_000_000)
        check_range("minimum_share", self.minimum_share, 0, 1)
        check_range("seed", self.seed, 0, (1 << 32) - 1)
        if self.domains * self.minimum_share > 1:
            raise MarinError(
                f"minimum_share = {self.minimum_share}: {self.domains} domains cannot each hold "
                "that share; lower one of the two"
            )


@dataclass(frozen=True)
class _Inputs:
    documents: Path
    embedding: Path
    dedup: Path | None
    parts: list[str]


def domains(
    documents: Path,
    embedding: Path,
    root: Path,
    config: DomainsConfig,
    *,
    dedup: Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the domain sidecar (`id`, `domain: uint16`, `fine: uint32`) and `centroids.arrow`.

    `centroids.arrow` has a row per fine centroid: `centroid`, `bias` (a document goes to the
    largest `<embedding, centroid> + bias`), `domain`, `documents`. The summary lists the domains
    with name, terms, documents and examples nearest to their centre.
    """
    progress = progress or Silent()
    manifest = read_manifest(embedding)
    inputs = {
        "documents": read_manifest(documents).fingerprint,
        "embedding": manifest.fingerprint,
    }
    if dedup is not None:
        inputs["dedup"] = read_manifest(dedup).fingerprint
    source = _Inputs(documents, embedding, dedup, part_names(manifest))
    with stage_directory(root, "domains", asdict(config), inputs) as stage:
        if not stage.finished:
            with progress.task("Cluster", total=None) as task:
                sample = _sample(source, config)
                centroids, bias = _fine_centroids(sample, config)
                task.advance(1)
            counts = _assign(stage, source, centroids, bias, progress)
            labels = np.asarray(
                pa.array(
                    coarsen_centroids(
                        centroids,
                        counts.astype(np.float64),
                        config.domains,
                        config.minimum_share,
                        _RESTARTS,
                        config.seed,
                        0,
                    )
                )
            )
            with atomic_file(stage.path / _CENTROIDS) as partial:
                _write_centroids(partial, centroids, bias, labels, counts)
            rows = _write_domains(stage, source.parts, labels)
            rows[_CENTROIDS] = len(centroids)
            with progress.task("Name domains", total=None) as task:
                summary = {"domains": _describe(stage, source, labels, counts)}
                task.advance(1)
            stage.finish(rows, summary)
        for part in source.parts:
            _fine_path(stage, part).unlink(missing_ok=True)
    return stage.path


def _sample(source: _Inputs, config: DomainsConfig) -> np.ndarray:
    """Vectors of kept documents, float32 [n, D]: of every source its share of the sample, by the
    smallest hashes of the ids. Zero vectors are left out."""
    counts: dict[str, int] = {}
    for part in source.parts:
        for entry in pc.value_counts(_kept_ids(source, part)["source"]).to_pylist():
            counts[entry["values"]] = counts.get(entry["values"], 0) + entry["counts"]
    total = max(sum(counts.values()), 1)
    limits = {
        name: min(2**64 - 1, int(config.sample / total * 2**64)) for name, count in counts.items()
    }
    chosen: list[np.ndarray] = []
    chosen_keys: list[np.ndarray] = []
    for part in source.parts:
        table = _kept_ids(source, part)
        ids, sources = table["id"].combine_chunks(), table["source"]
        keys = np.asarray(pa.array(document_keys(ids, config.seed)))
        limit = np.array([limits[name] for name in counts], dtype=np.uint64)
        index = pc.index_in(sources, value_set=pa.array(list(counts), pa.string()))
        take = keys <= limit[index.to_numpy()]
        rows = table["row"].to_numpy()[take]
        vectors, scales = _vectors(source.embedding / part)
        worded = scales[rows] > 0
        rows = rows[worded]
        chosen.append(vectors[rows].astype(np.float32) * scales[rows, None])
        chosen_keys.append(keys[take][worded])
    # In the order of the keys the sums of k-means do not depend on the order of the documents.
    order = np.argsort(np.concatenate(chosen_keys), kind="stable")
    sample: np.ndarray = np.concatenate(chosen)[order]
    return sample


def _kept_ids(source: _Inputs, part: str) -> pa.Table:
    """`id`, `source` and `row` (in the part) of the kept documents of a part."""
    table = read_part(source.documents / part, ["id", "source"])
    table = table.append_column("row", pa.array(np.arange(len(table))))
    keep = pa.array(kept_mask(source.dedup, part, table["id"]))
    return table.filter(keep).combine_chunks()


def _vectors(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """int8 [n, D] and float32 [n] of an embedding part."""
    table = read_part(path, ["embedding", "scale"])
    dimensions = table.schema.field("embedding").type.list_size
    values = [chunk.flatten().to_numpy() for chunk in table["embedding"].chunks]
    flat = np.concatenate(values) if values else np.zeros(0, dtype=np.int8)
    return flat.reshape(-1, dimensions), table["scale"].to_numpy()


def _fine_centroids(sample: np.ndarray, config: DomainsConfig) -> tuple[np.ndarray, np.ndarray]:
    """Unit centroids float32 [K, D] of the centred sample, and the bias that does the centring."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    if len(sample) == 0:
        return np.zeros((1, max(sample.shape[1], 1)), dtype=np.float32), np.zeros(1, np.float32)
    mean = sample.mean(axis=0, dtype=np.float64).astype(np.float32)
    centred = sample - mean
    centred /= np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    fine = min(
        config.fine, max(len(sample) // _DOCUMENTS_PER_CENTROID, config.domains), len(sample)
    )
    with threadpool_limits(1), warnings.catch_warnings():
        # Fewer distinct vectors than clusters: the spare centroids stay empty, which is right.
        warnings.simplefilter("ignore", ConvergenceWarning)
        means = KMeans(fine, n_init=1, max_iter=_KMEANS_ROUNDS, random_state=config.seed)
        centroids = means.fit(centred).cluster_centers_.astype(np.float32)
    centroids /= np.maximum(np.linalg.norm(centroids, axis=1, keepdims=True), 1e-12)
    bias = -(centroids @ mean)
    return np.ascontiguousarray(centroids), bias.astype(np.float32)


def _fine_path(stage: StageDir, part: str) -> Path:
    return stage.path / f"fine-{part}"


def _assign(
    stage: StageDir, source: _Inputs, centroids: np.ndarray, bias: np.ndarray, progress: Progress
) -> np.ndarray:
    """Writes each document's fine centroid; returns kept documents per centroid, int64 [K]."""
    counts = np.zeros(len(centroids), dtype=np.int64)
    total = sum(pq.read_metadata(source.embedding / part).num_rows for part in source.parts)
    with progress.task("Assign domains", total=total) as task:
        for part in source.parts:
            ids = read_part(source.documents / part, ["id"])["id"]
            check_same_rows(
                ids, read_part(source.embedding / part, ["id"])["id"], source.embedding / part
            )
            vectors, scales = _vectors(source.embedding / part)
            if vectors.shape[1] != centroids.shape[1]:
                centroids = np.zeros((len(centroids), vectors.shape[1]), dtype=np.float32)
            found = pa.record_batch(nearest_centroids(vectors, scales, centroids, bias, 0))
            labels = found["label"].to_numpy()
            kept = labels[kept_mask(source.dedup, part, ids)]
            counts += np.bincount(kept, minlength=len(counts))
            table = pa.table({"id": ids, "fine": found["label"], "score": found["score"]})
            write_table(_fine_path(stage, part), table)
            task.advance(len(table))
    if counts.sum() == 0:
        raise MarinError(f"{source.documents}: no document was kept, so there are no domains")
    return counts


def _write_centroids(
    path: Path, centroids: np.ndarray, bias: np.ndarray, labels: np.ndarray, counts: np.ndarray
) -> None:
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(centroids.ravel()), centroids.shape[1])
    batch = pa.record_batch(
        [vectors, pa.array(bias), pa.array(labels.astype(np.uint16)), pa.array(counts)],
        names=["centroid", "bias", "domain", "documents"],
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


def _write_domains(stage: StageDir, parts: list[str], labels: np.ndarray) -> dict[str, int]:
    rows = {}
    for part in parts:
        table = read_part(_fine_path(stage, part), ["id", "fine"])
        domain = pa.array(labels[table["fine"].to_numpy()].astype(np.uint16))
        sidecar = pa.table([table["id"], domain, table["fine"]], names=["id", "domain", "fine"])
        write_table(stage.path / part, sidecar)
        rows[part] = len(sidecar)
    return rows


def _describe(
    stage: StageDir, source: _Inputs, labels: np.ndarray, counts: np.ndarray
) -> list[dict[str, Any]]:
    """Name, terms, size and examples of every domain, from a sample of kept documents."""
    count = int(labels.max()) + 1
    total = int(counts.sum())
    texts: list[pa.Array] = []
    groups: list[np.ndarray] = []
    examples: list[list[tuple[float, str, str]]] = [[] for _ in range(count)]
    limit = np.uint64(min(2**64 - 1, int(_NAMED_DOCUMENTS / total * 2**64)))
    for part in source.parts:
        fine = read_part(_fine_path(stage, part), ["id", "fine", "score"])
        ids = fine["id"].combine_chunks()
        take = np.asarray(pa.array(document_keys(ids, 1))) <= limit
        take &= kept_mask(source.dedup, part, ids)
        domain = labels[fine["fine"].to_numpy()]
        scores = fine["score"].to_numpy()
        start = 0
        for batch in read_groups(source.documents / part, ["id", "text"]):
            rows = np.flatnonzero(take[start : start + len(batch)])
            heads = pc.utf8_slice_codeunits(batch["text"].take(pa.array(rows)), 0, 8192)
            texts.append(heads)
            groups.append(domain[start + rows].astype(np.uint32))
            for group in np.unique(groups[-1]):
                inside = rows[groups[-1] == group]
                best = inside[np.argsort(-scores[start + inside], kind="stable")[:_EXAMPLES]]
                for row in best:
                    head = (batch["text"][int(row)].as_py() or "")[:_EXAMPLE_CHARACTERS]
                    example = (-float(scores[start + row]), batch["id"][int(row)].as_py(), head)
                    examples[group].append(example)
                examples[group] = sorted(examples[group])[:_EXAMPLES]
            start += len(batch)
    terms = distinctive_terms(texts, np.concatenate(groups), count, _TERMS, 0)
    sizes = np.bincount(labels, weights=counts, minlength=count).astype(np.int64)
    return [
        {
            "name": " ".join(terms[d][:_NAME_TERMS]) or f"domain {d}",
            "terms": terms[d],
            "documents": int(sizes[d]),
            "examples": [{"id": id_, "text": head} for _, id_, head in examples[d]],
        }
        for d in range(count)
    ]
