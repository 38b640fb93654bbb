"""Decontamination: documents that hold items of evaluation sets are removed, with evidence.

`find_matches` searches one documents directory for the word n-grams of all items; `decontaminate`
counts in how many documents of the corpus each n-gram stands, leaves out those that are
boilerplate, and removes the documents in which enough of an item was found.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marin._native import ContaminationIndex
from marin.datakit.parts import (
    check_same_rows,
    part_names,
    read_groups,
    read_part,
    write_sidecar,
    write_table,
)
from marin.engine import Engine, Local, Progress, Silent, read_manifest, stage_directory
from marin.errors import MarinError

_LIST = pa.list_(pa.uint32())
MATCHES_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        *(pa.field(name, _LIST) for name in ("grams", "starts", "ends")),
    ]
)
REMOVALS_SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("keep", pa.bool_(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("representative", pa.string()),
        pa.field("similarity", pa.float32()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("evidence", pa.string()),
    ]
)
CONTAMINATED = "contaminated"
_EXAMPLES = 20
_EVIDENCE_CHARACTERS = 300


@dataclass(frozen=True)
class DecontaminateConfig:
    """`n`: words in an n-gram; `threshold`: share of an item's n-grams that makes a document
    contaminated; `guard`: an n-gram in more than this share of the documents (and in more than 10
    of them) is boilerplate."""

    n: int = 13
    threshold: float = 0.5
    guard: float = 0.001

    def __post_init__(self) -> None:
        if not 6 <= self.n <= 100:
            raise MarinError(f"n = {self.n}: expected 6 to 100 words")
        for key, value in (("threshold", self.threshold), ("guard", self.guard)):
            if not 0 < value <= 1:
                raise MarinError(f"{key} = {value}: expected a share above 0, at most 1")


def find_matches(
    documents: Path,
    evaluation: Sequence[Path],
    root: Path,
    config: DecontaminateConfig,
    *,
    engine: Engine | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes the matches sidecar: `id`, and the n-grams of `evaluation` (documents directories, an
    item per document) in each text: `grams`, and the bytes `starts` to `ends` of the first place.
    """
    inputs = {
        "documents": read_manifest(documents).fingerprint,
        **{f"evaluation-{i}": read_manifest(e).fingerprint for i, e in enumerate(evaluation)},
    }
    with stage_directory(root, "matches", {"n": config.n}, inputs) as stage:
        if not stage.finished:
            rows, _ = write_sidecar(
                stage,
                documents,
                ["text"],
                MATCHES_SCHEMA,
                partial(_search, tuple(evaluation), config.n),
                name="Search evaluation sets",
                engine=engine or Local(),
                progress=progress or Silent(),
            )
            stage.finish(rows)
    return stage.path


def decontaminate(
    documents: Path,
    matches: Path,
    evaluation: Sequence[Path],
    root: Path,
    config: DecontaminateConfig,
    *,
    progress: Progress | None = None,
) -> Path:
    """Writes the contamination sidecar: the columns of a deduplication sidecar and `evidence`.

    A contaminated document has the reason `contaminated`, the item's id as its representative, the
    share found as its similarity, and the passage as its evidence. Deduplication comes after it
    (`dedup(..., removed=)`), so that no clean document goes for a contaminated one.
    """
    progress = progress or Silent()
    manifest = read_manifest(documents)
    inputs = {
        "documents": manifest.fingerprint,
        "matches": read_manifest(matches).fingerprint,
        **{f"evaluation-{i}": read_manifest(e).fingerprint for i, e in enumerate(evaluation)},
    }
    parts = part_names(manifest)
    with stage_directory(root, "contamination", asdict(config), inputs) as stage:
        if not stage.finished:
            index, items = _index(tuple(evaluation), config.n)
            counts = _documents_with(matches, parts, len(index))
            guard = max(10, int(config.guard * manifest.rows))
            removed = 0
            examples: list[dict[str, Any]] = []
            with progress.task("Decontaminate", total=len(parts)) as task:
                for part in parts:
                    found = read_part(matches / part, ["id", "grams"])
                    grams = found["grams"].combine_chunks()
                    verdicts = pa.record_batch(index.judge(grams, counts, guard, config.threshold))
                    table = _removals(documents, matches, part, verdicts, items)
                    write_table(stage.path / part, table)
                    chosen = table.filter(pc.invert(table["keep"]))
                    removed += len(chosen)
                    examples += chosen.slice(0, _EXAMPLES - len(examples)).to_pylist()
                    task.advance(1)
            summary = {
                "documents": manifest.rows,
                "kept": manifest.rows - removed,
                "removed_contaminated": removed,
                "items": len(items),
                "grams": len(index),
                "boilerplate_grams": int((counts > guard).sum()),
                "contaminated": [
                    {key: row[key] for key in ("id", "representative", "similarity", "evidence")}
                    for row in examples
                ],
            }
            stage.finish({part: _row_count(stage.path / part) for part in parts}, summary)
    return stage.path


@lru_cache(maxsize=1)
def _index(evaluation: tuple[Path, ...], n: int) -> tuple[ContaminationIndex, list[str]]:
    """The index over all items, and their ids."""
    texts: list[pa.Array] = []
    ids: list[str] = []
    for directory in evaluation:
        for part in part_names(read_manifest(directory)):
            for batch in read_groups(directory / part, ["id", "text"]):
                texts.append(batch["text"])
                ids += batch["id"].to_pylist()
    return ContaminationIndex(texts, n), ids


def _search(evaluation: tuple[Path, ...], n: int, batch: pa.RecordBatch) -> pa.RecordBatch:
    found = pa.record_batch(_index(evaluation, n)[0].search(batch["text"], 0))
    return pa.record_batch([batch["id"], *found.columns], names=MATCHES_SCHEMA.names)


def _documents_with(matches: Path, parts: Sequence[str], grams: int) -> np.ndarray:
    """In how many documents each n-gram stands, uint64 [grams]."""
    counts = np.zeros(grams, dtype=np.uint64)
    for part in parts:
        values = read_part(matches / part, ["grams"])["grams"].combine_chunks().flatten()
        counts += np.bincount(values.to_numpy(), minlength=grams).astype(np.uint64)
    return counts


def _removals(
    documents: Path,
    matches: Path,
    part: str,
    verdicts: pa.RecordBatch,
    items: list[str],
) -> pa.Table:
    ids = read_part(documents / part, ["id"])["id"].combine_chunks()
    check_same_rows(ids, read_part(matches / part, ["id"])["id"], matches / part)
    contaminated = pc.is_valid(verdicts["item"])
    return pa.table(
        {
            "id": ids,
            "keep": pc.invert(contaminated),
            "cluster": ids,
            "representative": pc.take(pa.array(items, pa.string()), verdicts["item"]),
            "similarity": pc.if_else(contaminated, verdicts["share"], None),
            "reason": pc.if_else(contaminated, CONTAMINATED, ""),
            "evidence": _evidence(documents, matches, part, contaminated),
        },
        schema=REMOVALS_SCHEMA,
    )


def _evidence(documents: Path, matches: Path, part: str, contaminated: pa.Array) -> pa.Array:
    """The first passage found in each contaminated document; only those are read closely."""
    wanted = contaminated.to_numpy(zero_copy_only=False)
    evidence: list[str | None] = [None] * len(wanted)
    if wanted.any():
        starts = read_part(matches / part, ["starts"])["starts"]
        row = 0
        for batch in read_groups(documents / part, ["text"]):
            for inside in np.flatnonzero(wanted[row : row + len(batch)]):
                text = batch["text"][int(inside)].as_py().encode()
                first = starts[int(row + inside)].as_py()[0]
                passage = text[first : first + 4 * _EVIDENCE_CHARACTERS].decode("utf-8", "ignore")
                evidence[row + inside] = passage[:_EVIDENCE_CHARACTERS]
            row += len(batch)
    return pa.array(evidence, pa.string())


def _row_count(path: Path) -> int:
    return len(read_part(path, ["id"]))
