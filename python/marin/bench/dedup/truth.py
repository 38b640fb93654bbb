"""Ground truth: all pairs of similar documents, by their sets of word 5-grams alone.

Nothing here is shared with what is measured: words are `\\w+` of the lower-cased text as Python's
`re` finds them, the runs are told apart by Python's 64-bit hash,
and sets are compared by an exact product of the sparse matrix of documents and shingles.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from scipy.sparse import csr_matrix

from marin._native import xxh3_bytes
from marin.engine import atomic_file

WORDS_PER_SHINGLE = 5
_LEAST_WORDS = 5
_MOST_BYTES = 200_000
_BLOCK = 256


def select_documents(files: Sequence[Path], count: int, out: Path) -> Path:
    """Writes about `count` exactly distinct documents of `files` to `out`: all versions of randomly
    chosen paths, so that true pairs of every similarity are among them.
    """
    places: dict[str, list[tuple[Path, int]]] = {}
    for file in files:
        names = pq.read_table(file, columns=["source", "path"]).to_pylist()
        for row, name in enumerate(names):
            places.setdefault(f"{name['source']}/{name['path']}", []).append((file, row))
    order = sorted(places, key=lambda path: xxh3_bytes(path.encode()))[:count]
    wanted: dict[Path, list[int]] = {}
    for path in order:
        for file, row in places[path]:
            wanted.setdefault(file, []).append(row)
    texts_of: dict[tuple[Path, int], tuple[str, str]] = {}
    for file, rows in wanted.items():
        table = pq.read_table(file, columns=["id", "text"]).take(rows)
        pairs = zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True)
        texts_of.update({(file, row): pair for row, pair in zip(rows, pairs, strict=True)})
    seen: set[str] = set()
    chosen: list[tuple[str, str]] = []
    for path in order:
        if len(chosen) >= count:
            break
        for place in places[path]:
            identity, text = texts_of[place]
            words = _words(text) if len(text) <= _MOST_BYTES else []
            digest = xxh3_bytes(" ".join(words).encode())
            if len(words) >= _LEAST_WORDS and digest not in seen:
                seen.add(digest)
                chosen.append((identity, text))
    ids, texts = zip(*chosen, strict=True)
    with atomic_file(out) as partial:
        pq.write_table(pa.table({"id": ids, "text": pa.array(texts, pa.large_string())}), partial)
    return out


@dataclass(frozen=True)
class Quality:
    """How a choice of kept documents compares with the truth.

    `recall`: share of true pairs of which not both are kept. `precision`: share of removed
    documents that are at least as similar as the threshold to a kept one. `orphans`: removed
    documents that are not. `missed`: true pairs with both kept.
    """

    true_pairs: int
    recall: float
    precision: float
    removed: int
    orphans: int
    missed: int


class Truth:
    """The similar pairs of the documents in `path`, which has the columns id and text."""

    def __init__(self, path: Path, threshold: float) -> None:
        texts = pq.read_table(path, columns=["text"])["text"].to_pylist()
        matrix = _matrix(texts)
        sizes = np.asarray(matrix.sum(axis=1)).ravel()
        pairs = []
        for start in range(0, len(texts), _BLOCK):
            shared = (matrix[start : start + _BLOCK] @ matrix.T).tocoo()
            a, b = shared.row + start, shared.col
            whole = sizes[a] + sizes[b] - shared.data
            similar = (a < b) & (shared.data / whole >= threshold)
            pairs.append(np.stack([a[similar], b[similar]], axis=1))
        self.documents = len(texts)
        self.pairs = np.concatenate(pairs)

    def judge(self, keep: np.ndarray) -> Quality:
        """`keep` is bool[documents], in the order of the file."""
        a, b = self.pairs.T
        missed = int((keep[a] & keep[b]).sum())
        has_kept_twin = np.zeros(self.documents, bool)
        has_kept_twin[a[keep[b]]] = True
        has_kept_twin[b[keep[a]]] = True
        removed = int((~keep).sum())
        orphans = int((~keep & ~has_kept_twin).sum())
        return Quality(
            true_pairs=len(self.pairs),
            recall=1 - missed / max(len(self.pairs), 1),
            precision=1 - orphans / max(removed, 1),
            removed=removed,
            orphans=orphans,
            missed=missed,
        )


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _matrix(texts: Sequence[str]) -> csr_matrix:
    """int32[documents, distinct shingles] of zeros and ones."""
    rows = []
    for text in texts:
        words = _words(text)
        runs = zip(*(words[i:] for i in range(WORDS_PER_SHINGLE)), strict=False)
        rows.append(np.unique(np.fromiter(map(hash, runs), np.int64)))
    ends = np.cumsum([0, *map(len, rows)])
    distinct, indices = np.unique(np.concatenate(rows), return_inverse=True)
    shape = (len(texts), max(len(distinct), 1))
    return csr_matrix((np.ones(len(indices), np.int32), indices, ends), shape=shape)
