"""Pairs of a removed document and its kept twin, with the beginnings of their texts."""

from collections.abc import Sequence
from typing import Any

from marin.datakit.dedup.inputs import RowGroup, strings

EXCERPT = 400


def read_examples(
    pairs: Sequence[tuple[int, int, float, str]], groups: Sequence[RowGroup]
) -> list[dict[str, Any]]:
    """`pairs` are (removed, kept, similarity, reason) by document number; each becomes a mapping
    with `removed` and `kept` (ids), `similarity`, `reason`, `removed_text` and `kept_text` (at most
    400 characters).
    """
    found = read_documents(sorted({n for pair in pairs for n in pair[:2]}), groups)
    return [
        {
            "removed": found[removed][0],
            "kept": found[kept][0],
            "similarity": round(similarity, 6),
            "reason": reason,
            "removed_text": found[removed][1][:EXCERPT],
            "kept_text": found[kept][1][:EXCERPT],
        }
        for removed, kept, similarity, reason in pairs
    ]


def read_documents(
    documents: Sequence[int], groups: Sequence[RowGroup]
) -> dict[int, tuple[str, str]]:
    """(id, text) by document number; a text of null reads as empty."""
    found: dict[int, tuple[str, str]] = {}
    for group in groups:
        wanted = [n for n in documents if group.first <= n < group.first + group.rows]
        if not wanted:
            continue
        for first, batch in group.batches(["id", "text"]):
            ids = strings(batch.column("id"), group.file.path, "id")
            texts = strings(batch.column("text"), group.file.path, "text")
            for n in wanted:
                if first <= n < first + batch.num_rows:
                    found[n] = (_text(ids[n - first]), _text(texts[n - first]))
            if first + batch.num_rows > wanted[-1]:
                break
    return found


def _text(scalar: Any) -> str:
    data = scalar.as_buffer()
    return "" if data is None else data.to_pybytes().decode(errors="replace")
