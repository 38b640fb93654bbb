"""Pairs of a removed document and its kept twin, with the parts of their texts that tell most."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa

from marin.datakit.dedup.inputs import RowGroup, row_groups, strings
from marin.datakit.dedup.signatures import Anchors

EXCERPT = 400
"""Characters of a text that are shown."""

_BEFORE = 100
"""Of these, how many stand before the first difference."""


def read_examples(
    pairs: Sequence[tuple[int, int, float, str]],
    groups: Sequence[RowGroup],
    anchors: Sequence[Anchors],
    threads: int,
) -> list[dict[str, Any]]:
    """`pairs` are (removed, kept, similarity, reason) by document number; each becomes a mapping
    with `removed` and `kept` (ids), `similarity`, `reason`, `removed_text` and `kept_text`: at most
    400 characters, from the beginning or, if those are equal, from shortly before the first
    difference.
    """
    documents = sorted({n for pair in pairs for n in pair[:2]})
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
    for removed, kept, similarity, reason in pairs:
        texts = found[removed][1], found[kept][1]
        common = _common_prefix(*texts)
        start = common - _BEFORE if EXCERPT <= common < max(map(len, texts)) else 0
        examples.append(
            {
                "removed": found[removed][0],
                "kept": found[kept][0],
                "similarity": round(similarity, 6),
                "reason": reason,
                "removed_text": texts[0][start : start + EXCERPT],
                "kept_text": texts[1][start : start + EXCERPT],
            }
        )
    return examples


def _read(
    documents: Sequence[int], groups: Sequence[RowGroup], threads: int
) -> dict[int, tuple[str, str]]:
    """(id, text) by document number; a text of null reads as empty."""

    def read(group: RowGroup) -> dict[int, tuple[str, str]]:
        wanted = [n for n in documents if group.first <= n < group.first + group.rows]
        found: dict[int, tuple[str, str]] = {}
        for first, batch in group.batches(["id", "text"]):
            ids, texts = (
                strings(batch.column(name), group.file.path, name) for name in ("id", "text")
            )
            for n in wanted:
                if first <= n < first + batch.num_rows:
                    found[n] = (_text(ids[n - first]), _text(texts[n - first]))
            if first + batch.num_rows > wanted[-1]:
                break
        return found

    touched = [g for g in groups if any(g.first <= n < g.first + g.rows for n in documents)]
    with ThreadPoolExecutor(threads) as pool:
        return {n: pair for part in pool.map(read, touched) for n, pair in part.items()}


def _text(scalar: pa.Scalar) -> str:
    data = scalar.as_buffer()
    return "" if data is None else data.to_pybytes().decode(errors="replace")


def _common_prefix(a: str, b: str) -> int:
    """Characters that both texts begin with."""
    shorter = min(len(a), len(b))
    x, y = (np.frombuffer(t[:shorter].encode("utf-32-le"), np.uint32) for t in (a, b))
    different = np.flatnonzero(x != y)
    return int(different[0]) if len(different) else shorter
