"""The cell store: documents joined with their sidecars, shuffled, one folder per cell.

Documents get two keyed hashes. One decides, before anything else, whether the document is held
out for validation: it hashes the cluster of near duplicates, so that no near duplicate of a
held-out document is trained on. The other is the order inside a cell, and so does not depend on
the order of the input.

Memory is bounded by `bucket_bytes`: where the tokens are more, the range of the order hash is cut
into buckets; a first pass spills each part's rows by bucket, a second one sorts each bucket and
writes it as one file per cell, `store/<cell>/part-<bucket>.arrow`.
"""

import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marin._native import document_keys, xxh3_bytes
from marin.datakit.encode import TOKENS_TYPE
from marin.datakit.parts import check_same_rows, kept_mask, part_names, read_groups, read_part
from marin.engine import (
    Engine,
    Local,
    Progress,
    Silent,
    atomic_file,
    read_manifest,
    stage_directory,
)
from marin.errors import MarinError
from marin.validation import check_range

VALIDATION = "validation"
STORE_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("source", pa.string(), nullable=False),
        pa.field("tokens", TOKENS_TYPE, nullable=False),
    ]
)
_SPILL_SCHEMA = pa.schema(
    [
        *STORE_SCHEMA,
        pa.field("cell", pa.string(), nullable=False),
        pa.field("folder", pa.string(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
    ]
)
_VALIDATION_SCHEMA = STORE_SCHEMA.append(pa.field("cell", pa.string(), nullable=False))
_SPILL = "spill"
_ROWS_PER_BATCH = 4096


@dataclass(frozen=True)
class StoreConfig:
    """`validation`: share of the clusters of documents that is held out; `seed`: of both hashes;
    `bucket_bytes`: tokens sorted at once."""

    validation: float = 0.005
    seed: int = 0
    bucket_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        if not 0 <= self.validation < 1:
            raise MarinError(f"validation = {self.validation}: expected a share from 0 to below 1")
        check_range("seed", self.seed, 0, (1 << 63) - 1)
        check_range("bucket_bytes", self.bucket_bytes, 1, 1 << 50)


@dataclass(frozen=True)
class Sidecars:
    """The directories that a store joins; `dedup` may be absent: everything is kept then."""

    tokens: Path
    domains: Path
    quality: Path
    dedup: Path | None = None


def build_store(
    documents: Path,
    sidecars: Sidecars,
    root: Path,
    config: StoreConfig,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the store: `<cell>/part-NNNNN.arrow` and `validation/part-NNNNN.arrow`.

    Cells are named `c<domain>q<bucket>`; files are uncompressed Arrow IPC with `id`, `source`,
    `tokens: large_list<uint32>`; validation has `cell` too.

    Raises:
      MarinError: a sidecar lacks rows or has them in another order, or nothing was kept.
    """
    engine, progress = engine or Local(), progress or Silent()
    inputs = {"documents": read_manifest(documents).fingerprint}
    for name, directory in vars(sidecars).items():
        if directory is not None:
            inputs[name] = read_manifest(directory).fingerprint
    with stage_directory(root, "store", asdict(config), inputs) as stage:
        if not stage.finished:
            tokens = read_manifest(sidecars.tokens).summary
            buckets = max(1, -(-4 * int(tokens["tokens"]) // config.bucket_bytes))
            spill = stage.path / _SPILL
            spill.mkdir(exist_ok=True)
            parts = part_names(read_manifest(documents))
            joins = [_Join(documents, sidecars, part, spill, config, buckets) for part in parts]
            with progress.task("Join sidecars", total=len(joins)) as task:
                for _ in engine.map(_spill, joins):
                    task.advance(1)
            sorts = [_Sort(stage.path, spill, bucket) for bucket in range(buckets)]
            counts: list[_Counts] = []
            with progress.task("Write cells", total=buckets) as task:
                for count in engine.map(_write_bucket, sorts):
                    counts.append(count)
                    task.advance(1)
            rows, summary = _total(stage.path, counts)
            if not summary["cells"]:
                raise MarinError(
                    f"{documents}: no document is left to train on; lower the held-out share "
                    f"(validation = {config.validation}) or add documents"
                )
            listed = read_manifest(sidecars.domains).summary["domains"]
            summary["tokenizer"] = tokens["tokenizer"]
            summary["domains"] = [
                {key: domain[key] for key in ("name", "terms", "documents")} for domain in listed
            ]
            stage.finish(rows, summary)
        # Here, so that a run killed at the very end leaves nothing behind either.
        shutil.rmtree(stage.path / _SPILL, ignore_errors=True)
    return stage.path


@dataclass(frozen=True)
class _Join:
    documents: Path
    sidecars: Sidecars
    part: str
    spill: Path
    config: StoreConfig
    buckets: int


@dataclass(frozen=True)
class _Sort:
    store: Path
    spill: Path
    bucket: int


_Counts = dict[str, tuple[int, int, str]]
"""Rows, tokens and the checksum of the documents' lengths by file."""


def _spill(join: _Join) -> None:
    """Writes `spill/<part>-<bucket>.arrow`, rows in the order of the part."""
    paths = [join.spill / f"{join.part}-{bucket:05d}.arrow" for bucket in range(join.buckets)]
    if all(path.exists() for path in paths):
        return
    pending: list[list[pa.RecordBatch]] = [[] for _ in paths]
    for batch in _joined(join.documents, join.sidecars, join.part, join.config):
        bucket = _bucket(batch["key"].to_numpy(), join.buckets)
        for index in np.unique(bucket):
            pending[index].append(batch.filter(pa.array(bucket == index)))
    for path, batches in zip(paths, pending, strict=True):
        with atomic_file(path) as partial:
            _write_arrow(partial, pa.Table.from_batches(batches, _SPILL_SCHEMA))


def _bucket(keys: np.ndarray, buckets: int) -> np.ndarray:
    """The bucket of each key: equal ranges of the upper 32 bits."""
    return ((keys >> np.uint64(32)) * np.uint64(buckets) >> np.uint64(32)).astype(np.int64)


def _joined(
    documents: Path, sidecars: Sidecars, part: str, config: StoreConfig
) -> Iterator[pa.RecordBatch]:
    """The kept documents of a part in the spill's schema; `folder` is where each will stand."""
    table = read_part(documents / part, ["id", "source"])
    ids = table["id"].combine_chunks()
    if len(ids) == 0:  # the part of a source without documents
        return
    labels = {}
    for directory, column in ((sidecars.domains, "domain"), (sidecars.quality, "bucket")):
        sidecar = read_part(directory / part, ["id", column])
        check_same_rows(ids, sidecar["id"], directory / part)
        labels[column] = sidecar[column].to_numpy()
    kept = kept_mask(sidecars.dedup, part, ids)
    keys = np.asarray(pa.array(document_keys(ids, config.seed)))
    families = ids
    if sidecars.dedup is not None:
        clusters = read_part(sidecars.dedup / part, ["cluster"])["cluster"].combine_chunks()
        families = pc.if_else(pc.equal(pc.fill_null(clusters, ""), ""), ids, clusters)
    # A seed of its own, so that being held out says nothing about the place in the order.
    draw = np.asarray(pa.array(document_keys(families, config.seed + (1 << 32))))
    held_out = draw < np.uint64(config.validation * 2**64)
    names = np.char.add(
        np.char.add("c", np.char.zfill(labels["domain"].astype(str), 2)),
        np.char.add("q", labels["bucket"].astype(str)),
    )
    folders = np.where(held_out, VALIDATION, names)
    start = 0
    for batch in read_groups(sidecars.tokens / part, ["id", "tokens"]):
        rows = slice(start, start + len(batch))
        check_same_rows(ids[rows], batch["id"], sidecars.tokens / part)
        start += len(batch)
        yield pa.record_batch(
            [
                batch["id"],
                table["source"][rows].combine_chunks(),
                batch["tokens"],
                pa.array(names[rows], pa.string()),
                pa.array(folders[rows], pa.string()),
                pa.array(keys[rows]),
            ],
            schema=_SPILL_SCHEMA,
        ).filter(pa.array(kept[rows]))
    if start != len(ids):
        raise MarinError(
            f"{sidecars.tokens / part}: {start} rows for {len(ids)} documents; run its stage again"
        )


def _write_bucket(sort: _Sort) -> _Counts:
    """Sorts a bucket by folder and key and writes its files."""
    tables = []
    for path in sorted(sort.spill.glob(f"*-{sort.bucket:05d}.arrow")):
        with pa.memory_map(str(path)) as source:
            tables.append(pa.ipc.open_file(source).read_all())
    table = pa.concat_tables(tables)
    order = pc.sort_indices(
        table.select(["folder", "key", "id"]),
        [("folder", "ascending"), ("key", "ascending"), ("id", "ascending")],
    )
    # Once for all folders: each take of a chunked list column costs a pass over all of it.
    table = table.take(order)
    counts: _Counts = {}
    for folder, start, end in _runs(table["folder"]):
        chosen = table.slice(start, end - start)
        file = f"{folder}/part-{sort.bucket:05d}.arrow"
        schema = _VALIDATION_SCHEMA if folder == VALIDATION else STORE_SCHEMA
        _write_file(sort.store / file, chosen.select(schema.names).cast(schema))
        lengths = pc.list_value_length(chosen["tokens"]).to_numpy().astype("<i8")
        counts[file] = (len(chosen), int(lengths.sum()), xxh3_bytes(lengths.tobytes()))
    return counts


def _total(store: Path, counts: list[_Counts]) -> tuple[dict[str, int], dict[str, Any]]:
    """Rows by file, documents and tokens by cell, and the checksums of the documents' lengths by
    file: plans read no more than lengths. There is a validation file in any case."""
    rows: dict[str, int] = {}
    cells: dict[str, dict[str, int]] = {}
    lengths: dict[str, str] = {}
    for file, (documents, tokens, xxh3) in chain.from_iterable(count.items() for count in counts):
        rows[file] = documents
        lengths[file] = xxh3
        cell = cells.setdefault(file.partition("/")[0], {"documents": 0, "tokens": 0})
        cell["documents"] += documents
        cell["tokens"] += tokens
    if VALIDATION not in cells:
        file = f"{VALIDATION}/part-00000.arrow"
        _write_file(store / file, _VALIDATION_SCHEMA.empty_table())
        rows[file] = 0
    validation = cells.pop(VALIDATION, {"documents": 0, "tokens": 0})
    return rows, {
        "cells": dict(sorted(cells.items())),
        "validation": validation,
        "lengths": dict(sorted(lengths.items())),
    }


def _runs(names: pa.ChunkedArray) -> Iterator[tuple[str, int, int]]:
    """(value, start, end) of the runs of equal values."""
    encoded = pc.run_end_encode(names.combine_chunks())
    start = 0
    chunks = encoded.chunks if isinstance(encoded, pa.ChunkedArray) else [encoded]
    for chunk in chunks:
        base = start
        for value, end in zip(chunk.values.to_pylist(), chunk.run_ends.to_pylist(), strict=True):
            yield value, start, base + end
            start = base + end


def _write_file(path: Path, table: pa.Table) -> None:
    """Writes a file of the store; one that a killed run finished is the same and stays."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(path) as partial:
        _write_arrow(partial, table)


def _write_arrow(path: Path, table: pa.Table) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=_ROWS_PER_BATCH)
