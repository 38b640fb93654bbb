"""What a deduplication does, and with which means."""

import os
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from marin._native import DEDUP_NORMALIZATION, dedup_banding
from marin.errors import MarinError

_MADE_IDS = "file@content#row"
"""How ids are made, for manifests."""


@dataclass(frozen=True)
class Shingling:
    """How texts become sets: runs of `words` consecutive words, or of `characters` consecutive
    characters where a script has no spaces (`unit="auto"`) or everywhere (`"character"`).
    """

    words: int = 5
    characters: int = 5
    unit: Literal["auto", "character"] = "auto"

    def __post_init__(self) -> None:
        for name in ("words", "characters"):
            if getattr(self, name) < 1:
                raise MarinError(f"{name}={getattr(self, name)}: a shingle has at least 1 token")
        if self.unit not in ("auto", "character"):
            raise MarinError(f"unit={self.unit!r}: expected 'auto' or 'character'")


@dataclass(frozen=True)
class DedupConfig:
    """Parameters of `dedup`.

    Attributes:
      threshold: a document goes if its similarity to a kept one is at least this, 0 < t <= 1.
      shingling: the sets that are compared.
      measure: `jaccard`, shared shingles over all of both; or `containment`, shared ones over those
        of the document that may go.
      permutations: at most this many values in a sketch; bands and rows follow from it and the
        threshold, see `bands`.
      seed: of the sketches. It decides which pairs are proposed, never what counts as similar.
      priority: sources whose documents are kept in preference to others, best first.
      exempt: sources whose documents are never removed; others are still removed for them.
      make_ids: name documents `file@content#row`, whatever ids they have or lack: `file` is the
        name of the sidecar, `content` 12 hex digits of the file's checksum (in an object store, of
        its location, size and time of change).
      memory: bytes for band keys, shingle sets and hashes; what is beyond goes to files. None: a
        quarter of the machine's memory. Shows in no result. Beside it stand, in memory whatever
        the limit: some 80 bytes and the id of each document; some 250 bytes more of each candidate,
        a document that shares a band key; and for each thread a batch of texts, or band keys of
        1 MiB or of a sixteenth of `memory` if that is more.
      threads: 0 for all cores; a worker of an engine takes no more than its share of them. Shows in
        no result.
    """

    threshold: float = 0.8
    shingling: Shingling = Shingling()
    measure: Literal["jaccard", "containment"] = "jaccard"
    permutations: int = 256
    seed: int = 1
    priority: tuple[str, ...] = ()
    exempt: tuple[str, ...] = ()
    make_ids: bool = False
    memory: int | None = None
    threads: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise MarinError(f"threshold={self.threshold}: expected 0 < threshold <= 1")
        if self.measure not in ("jaccard", "containment"):
            raise MarinError(f"measure={self.measure!r}: expected 'jaccard' or 'containment'")
        if self.permutations < 1:
            raise MarinError(f"permutations={self.permutations}: expected at least 1")
        if not 0 <= self.seed < 1 << 64:
            raise MarinError(f"seed={self.seed}: expected 0 <= seed < 2**64")
        if self.threads < 0:
            raise MarinError(f"threads={self.threads}: expected 0 (all cores) or more")
        if self.memory is not None and self.memory < 1 << 20:
            raise MarinError(f"memory={self.memory} bytes: expected at least 1 MiB")
        for source in sorted({s for s in self.priority if self.priority.count(s) > 1}):
            raise MarinError(f"priority: source {source!r} twice")

    @property
    def bands(self) -> tuple[int, int]:
        """(bands, rows per band): the least expected error at the threshold within
        `permutations` values.

        Sketches only show Jaccard similarity. A containment of t means one of t / (2 - t) between
        documents of one size, so bands are chosen for that; a document inside a much longer one is
        less likely to be proposed (see `hit_rate`).
        """
        t = self.threshold
        return dedup_banding(t if self.measure == "jaccard" else t / (2 - t), self.permutations)

    @property
    def memory_bytes(self) -> int:
        if self.memory is not None:
            return self.memory
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4

    @property
    def thread_count(self) -> int:
        return self.threads or len(os.sched_getaffinity(0))

    def parameters(self) -> dict[str, Any]:
        """What decides the result, for the manifest."""
        bands, rows = self.bands
        return {
            "normalization": DEDUP_NORMALIZATION,
            "threshold": self.threshold,
            "shingle_words": self.shingling.words,
            "shingle_characters": self.shingling.characters,
            "shingle_unit": self.shingling.unit,
            "measure": self.measure,
            "bands": bands,
            "rows": rows,
            "seed": self.seed,
            "priority": list(self.priority),
            "exempt": sorted(self.exempt),
            "make_ids": self.make_ids and _MADE_IDS,
        }


def expected_misses(threshold: float, bands: int, rows: int) -> float:
    """Share of pairs at or above the threshold that are not proposed, if their similarities are
    spread evenly: the mean of 1 - `hit_rate` over threshold..1."""
    similarities = np.linspace(threshold, 1, 1001)
    return float(np.mean((1 - similarities**rows) ** bands))


def hit_rate(similarity: float, bands: int, rows: int) -> float:
    """The S-curve: the probability that a pair of this similarity is proposed."""
    return float(1 - (1 - similarity**rows) ** bands)
