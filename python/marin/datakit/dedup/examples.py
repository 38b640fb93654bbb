"""Pairs of a removed document and its kept twin, with the parts of their texts that tell most."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from marin.datakit.dedup.inputs import RowGroup, row_groups, strings
from marin.datakit.dedup.signatures import Anchors

EXCERPT = 400
"""Characters of a text that are shown."""

_BEFORE = 100
"""Of these, how many stand before the first difference."""


@dataclass(frozen=True)
class Pair:
    """A removed document and its kept twin, by number among all and by id."""

    removed: int
    kept: int
    removed_id: str
    kept_id: str
    similarity: float
    reason: str


def read_examples(
    pairs: Sequence[Pair],
    groups: Sequence[RowGroup],
    anchors: Sequence[Anchors],
    threads: int,
) -> list[dict[str, Any]]:
    """Each pair as a mapping with `removed` and `kept` (ids), `similarity`, `reason`,
    `removed_text` and `kept_text`: at most 400 characters, from the beginning or, if those are
    equal, from shortly before the first difference.
    """
    documents = sorted({n for pair in pairs for n in (pair.removed, pair.kept)})
    found = _read(documents, groups, threads)
    for anchor in anchors:
        row_of = {
            int(anchor.rows[n - anchor.first]): n
            for n in documents
            if anchor.first <= n < anchor.first + len(anchor.rows)
        }
        texts_of_rows = _read(sorted(row_of), row_groups([anchor.file]), threads)
        found |= {row_of[row]: text for row, text in texts_of_rows.items()}
    examples = []
    for pair in pairs:
        texts = found[pair.removed], found[pair.kept]
        common = _common_prefix(*texts)
        start = common - _BEFORE if EXCERPT <= common < max(map(len, texts)) else 0
        examples.append(
            {
                "removed": pair.removed_id,
                "kept": pair.kept_id,
                "similarity": round(pair.similarity, 6),
                "reason": pair.reason,
                "removed_text": texts[0][start : start + EXCERPT],
                "kept_text": texts[1][start : start + EXCERPT],
            }
        )
    return examples


def _read(documents: Sequence[int], groups: Sequence[RowGroup], threads: int) -> dict[int, str]:
    """Texts by document number; null reads as empty."""

    def read(group: RowGroup) -> dict[int, str]:
        wanted = [n for n in documents if group.first <= n < group.first + group.rows]
        found: dict[int, str] = {}
        for first, batch in group.batches(["text"]):
            texts = strings(batch.column("text"), group.file.location, "text")
            for n in wanted:
                if first <= n < first + batch.num_rows:
                    found[n] = _text(texts[n - first])
            if first + batch.num_rows > wanted[-1]:
                break
        return found

    touched = [g for g in groups if any(g.first <= n < g.first + g.rows for n in documents)]
    with ThreadPoolExecutor(threads) as pool:
        return {n: text for part in pool.map(read, touched) for n, text in part.items()}


def _text(scalar: pa.Scalar) -> str:
    data = scalar.as_buffer()
    return "" if data is None else data.to_pybytes().decode(errors="replace")


def _common_prefix(a: str, b: str) -> int:
    """Characters that both texts begin with."""
    shorter = min(len(a), len(b))
    x, y = (np.frombuffer(t[:shorter].encode("utf-32-le"), np.uint32) for t in (a, b))
    different = np.flatnonzero(x != y)
    return int(different[0]) if len(different) else shorter
