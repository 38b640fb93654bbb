"""Types of the Rust module; the docstrings of the functions stand here.

`ArrowLike` arguments take any object with `__arrow_c_array__`; `ArrowArray` results become pyarrow
arrays with `pa.array(x)`, or record batches with `pa.record_batch(x)`. Nothing is copied.
"""

import os
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__version__: str

class ArrowLike(Protocol):
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[Any, Any]: ...

class ArrowArray:
    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[Any, Any]: ...
    def __len__(self) -> int: ...

# checksum

def xxh3_file(path: str | os.PathLike[str]) -> str:
    """128-bit xxh3 of a file's content as 32 hex digits. Raises `OSError`."""

def xxh3_bytes(data: bytes) -> str:
    """128-bit xxh3 of `data` as 32 hex digits."""

def start_writeback(path: str | os.PathLike[str], offset: int, bytes: int) -> None:
    """Has the system begin to write a part of a file to disk, without waiting. Raises `OSError`."""

# dedup

DEDUP_NORMALIZATION: int
"""Version of the normalization of texts; changes whenever a text may give another hash."""

class DedupSession:
    """One deduplication of exactly `documents` documents, numbered from 0.

    Documents from `first_anchor` on are kept whatever they are, and come before all others.
    Those for which `left_out` (bool, may end early) holds take no part; their rows are not kept.
    `add` or `add_signed` every batch, ask `repeated_id`, `plan`, `add_texts` what it names,
    `resolve`, and read `rows`. `add` and `add_texts` may run in several threads at once and release
    the GIL. Files that do not fit into `memory` bytes go to `directory`; they end with the process.
    """

    def __init__(
        self,
        documents: int,
        *,
        words: int,
        characters: int,
        unit: str,
        bands: int,
        rows: int,
        seed: int,
        threshold: float,
        measure: str,
        priority: list[str],
        exempt: list[str],
        first_anchor: int,
        memory: int,
        directory: str | os.PathLike[str],
        left_out: NDArray[np.bool_] | None = None,
    ) -> None: ...
    def add(
        self, first: int, ids: ArrowLike, texts: ArrowLike, sources: ArrowLike | None = None
    ) -> None:
        """Takes documents `first..`: strings or bytes. A null text counts as empty."""

    def repeated_id(self) -> tuple[str, int, int] | None:
        """The first id that occurs again, with the numbers of both documents."""

    def plan(self, threads: int) -> NDArray[np.uint32]:
        """The documents whose texts `add_texts` has to see, ascending."""

    def add_texts(
        self, documents: NDArray[np.uint32], rows: NDArray[np.uint32], texts: ArrowLike
    ) -> None:
        """The text of document `documents[i]` is `texts[rows[i]]`."""

    def add_signed(
        self,
        first: int,
        ids: ArrowLike,
        sources: ArrowLike,
        kinds: NDArray[np.uint8],
        lengths: NDArray[np.uint32],
        exact: NDArray[np.uint64],
        keys: NDArray[np.uint64],
    ) -> None:
        """Takes documents `first..` with what `dedup_sign` found."""

    def resolve(self, threads: int) -> None: ...
    def rows(self, first: int, count: int) -> list[ArrowArray]:
        """id, keep, cluster, representative, similarity, reason of `count` documents."""

    def summary(self) -> dict[str, Any]: ...
    def examples(self, count: int) -> list[tuple[int, int, str, str, float, str]]:
        """(removed, kept, their ids, similarity, reason), the most doubtful first."""

def dedup_banding(threshold: float, bins: int) -> tuple[int, int]:
    """(bands, rows) of least expected error with at most `bins` values. Raises `ValueError`."""

def dedup_sign(
    texts: ArrowLike,
    *,
    words: int,
    characters: int,
    unit: str,
    bands: int,
    rows: int,
    seed: int,
) -> tuple[NDArray[np.uint8], NDArray[np.uint32], NDArray[np.uint64], NDArray[np.uint64]]:
    """kind [n], tokens [n], exact hash [n, 2], band keys [n, bands] of texts."""

def dedup_sketches(
    texts: ArrowLike, *, words: int, characters: int, unit: str, bins: int, seed: int
) -> NDArray[np.uint64]:
    """Fast sketches, uint64[texts, bins]; all ones for a text without shingles."""

def dedup_kperm(
    texts: ArrowLike,
    *,
    words: int,
    characters: int,
    unit: str,
    family: str,
    a: NDArray[np.uint64],
    b: NDArray[np.uint64],
    cap: int | None,
) -> NDArray[np.uint64]:
    """datasketch's sketches, uint64[texts, permutations]. Raises `ValueError`."""

# datakit

QUALITY_KINDS: list[str]
"""Kinds of content; the `kind` column of `quality_scores` indexes it."""

def read_text_files(
    paths: list[str] | list[os.PathLike[str]], max_bytes: int, threads: int
) -> ArrowArray:
    """Reads files in bulk: a record batch of `text: large_string` (null where there is none),
    `repaired: uint32` (malformed UTF-8 sequences replaced) and `problem: string` ("", "binary",
    "too large", "not a file", or the operating system's reason), in the order of `paths`."""

def parse_jsonl(
    block: bytes, last: bool, text: str, id: str | None, source: str | None, threads: int
) -> tuple[int, int, ArrowArray, ArrowArray]:
    """Parses the whole lines of a block (with `last`, an unfinished one too): bytes used, lines, a
    record batch of documents (`number`, `id`, `text`, `source`, `metadata`: the other keys as one
    JSON object, `repaired`), and one of rejected lines (`number`, `reason`, `excerpt`)."""

def parse_warc(block: bytes, last: bool) -> tuple[int, int, ArrowArray, ArrowArray]:
    """Parses the whole WARC or WET records of a block; answers as `parse_jsonl`. Text is taken
    from conversion records and plain-text resources and responses."""

def repair_texts(bytes: ArrowLike) -> ArrowArray:
    """A (large) binary column as UTF-8: a record batch of `text: large_string`, malformed
    sequences replaced by U+FFFD, and `repaired: uint32`, how many there were."""

class SeenIds:
    """The ids of a corpus so far, as 64-bit hashes."""

    def unique(self, ids: ArrowLike) -> ArrowArray:
        """A record batch of `id` and `renamed`: an id seen before gets `#2`, `#3`, ... appended.
        Raises `ValueError` for a null id."""

class ContaminationIndex:
    """The distinct word n-grams of evaluation items (chunks of a string column). An item shorter
    than `n` words is one n-gram if it has 6 at least. Raises `ValueError` for n below 6."""

    def __init__(self, items: Sequence[ArrowLike], n: int) -> None: ...
    def __len__(self) -> int: ...
    def search(self, texts: ArrowLike, threads: int) -> ArrowArray:
        """A record batch of `grams`, `starts`, `ends`: lists of uint32, the distinct n-grams found
        in each text and the bytes where each first stands."""

    def judge(
        self,
        grams: ArrowLike,
        documents_with: NDArray[np.uint64],
        guard: int,
        threshold: float,
    ) -> ArrowArray:
        """A record batch of `item`, `share`, `found`, null for clean documents: the item of which
        the largest share, at least `threshold`, of the n-grams was found. N-grams that
        `documents_with` says are in more than `guard` documents do not count."""

def document_keys(ids: ArrowLike, seed: int) -> ArrowArray:
    """`uint64` xxh3 of each id under `seed`. Raises `ValueError` for a null id."""

def document_ids(sources: ArrowLike, places: ArrowLike, texts: ArrowLike) -> ArrowArray:
    """`string` ids of 32 hex digits over source, place in the source, and text."""

def lexical_embedding(texts: ArrowLike, dimensions: int, threads: int) -> ArrowArray:
    """Hashed word n-gram embedding: a record batch of `embedding: fixed_size_list<int8>[D]` and
    `scale: float32`; value = int8 * scale, unit length. Null and wordless texts are zero."""

def nearest_centroids(
    embedding: NDArray[np.int8],
    scales: NDArray[np.float32],
    centroids: NDArray[np.float32],
    bias: NDArray[np.float32],
    threads: int,
) -> ArrowArray:
    """For each row of `embedding` [n, D] the centroid of [K, D] with the largest
    `<embedding * scale, centroid> + bias`: a record batch of `label: uint32`, `score: float32`."""

def coarsen_centroids(
    centroids: NDArray[np.float32],
    weights: NDArray[np.float64],
    clusters: int,
    minimum_share: float,
    restarts: int,
    seed: int,
    threads: int,
) -> ArrowArray:
    """Groups centroids [K, D] into at most `clusters` spherical clusters of at least
    `minimum_share` of the weight each: `uint32` labels [K], heaviest cluster first. The result
    does not depend on `threads` (0: all cores)."""

def distinctive_terms(
    texts: Sequence[ArrowLike],
    groups: NDArray[np.uint32],
    group_count: int,
    count: int,
    threads: int,
) -> list[list[str]]:
    """Per group the terms whose share of its documents differs most from all others'; `texts` are
    the chunks of a string column, `groups` a label per text."""

def quality_scores(texts: ArrowLike, threads: int) -> ArrowArray:
    """Heuristic quality: a record batch of `score: float32` (0 to 1), `kind: uint8` (index into
    `QUALITY_KINDS`) and `broken: uint32` (bit i: rule i of `quality_rules()` is broken)."""

def quality_rules() -> list[tuple[str, str]]:
    """Name and published source of each quality rule."""

# mixture

class RowOrder:
    """The rows of a run in training order; see `rust/core/src/mixture/order.rs`.

    Cells are numbered in the order of the weights. All errors are `ValueError`.
    """

    def __init__(
        self,
        plans: Sequence[tuple[int, Sequence[tuple[int, Sequence[float]]]]],
        stages: Sequence[int],
        runs: Sequence[tuple[int, int]],
        seed: int,
    ) -> None:
        """`plans`: (first row, phases as (rows, weight per cell)), the first at row 0; each later
        one replaces what is left of the one before. `stages`: first row of each stage. `runs`:
        (first row, batch size)."""

    @property
    def rows_total(self) -> int:
        """Rows of the run."""

    @property
    def bound(self) -> int:
        """No cell is ever off its target by more, in units of 2^-32 rows (proven)."""

    @property
    def depth(self) -> int:
        """Levels of the deepest tree."""

    def rows(
        self, start: int, count: int
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.int64]]:
        """Stage, cell and index within (stage, cell) of rows `start..start + count`."""

    def locate(
        self, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.uint16], NDArray[np.uint16], NDArray[np.int64]]:
        """The same of any rows, each in time independent of its number."""

    def rows_of(self, cell: int, start: int, count: int) -> NDArray[np.int64]:
        """The rows that are the cell's rows `start..start + count`, counted over the run."""

    def counts_at(self, row: int) -> NDArray[np.int64]:
        """Rows per cell before `row`: [cells]. Inside a batch, of the quotas' order."""

    def targets_at(self, row: int) -> list[int]:
        """Targets per cell at `row`, in units of 2^-32 rows; they add up to `row << 32`."""

    def stage_rows(self) -> NDArray[np.int64]:
        """Rows per stage and cell: [stages, cells]."""

    def worst(self, first: int, last: int, step: int, threads: int) -> tuple[int, int, int]:
        """The largest distance from a target after every `step`-th row of `first..=last`: (in units
        of 2^-32 rows, cell, row)."""

class DocumentOrder:
    """The endless order of a cell of `documents` documents of which the run sees `seen`: each epoch
    is another keyed permutation of them. `cell` is a 64-bit key that names the cell.
    """

    def __init__(self, seed: int, cell: int, documents: int, seen: int) -> None: ...
    def take(self, start: int, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Documents at positions `start..start + count`, and their epochs."""

# packing

class Packer:
    """Documents of one cell on their way into rows (`policy`: best-fit, concat or truncate).

    Raises `ValueError` for arguments out of range.
    """

    def __init__(
        self, policy: str, max_segments: int, min_fill: float, row_length: int
    ) -> None: ...
    def set_row_length(self, row_length: int) -> None:
        """Rows packed from here on have `row_length` tokens; waiting documents keep waiting."""

    def push(self, documents: NDArray[np.int64], lengths: NDArray[np.int64], enough: int) -> int:
        """Adds the next documents in order until `ready_tokens` reaches `enough`.

        Returns how many were taken.
        """

    def push_from(
        self, order: DocumentOrder, cell: StoreCell, start: int, count: int, enough: int
    ) -> int:
        """The same of the documents at `start..start + count` of an order."""

    @property
    def ready_tokens(self) -> int: ...
    @property
    def waiting(self) -> int: ...
    @property
    def waiting_tokens(self) -> int: ...
    @property
    def counts(self) -> dict[str, int]: ...
    def pack(
        self, wanted: int
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """At most `wanted` rows: offsets [rows + 1], and per piece document, start and length.

        Exactly `wanted` if `ready_tokens` are enough for them and `min_fill` does not forbid it.
        """

    def replay(
        self,
        offsets: NDArray[np.int32],
        document: NDArray[np.int64],
        start: NDArray[np.int64],
        length: NDArray[np.int32],
    ) -> int:
        """Takes rows that another plan packed out of what waits, and counts them.

        Stops before the first row with a piece that does not wait; returns the rows taken.
        """

class StoreCell:
    """Tokens of one cell: `chunks` are (index of the file, position of the first token value in
    it in bytes, large_list<uint32> whose offsets are used), in the order of documents."""

    def __init__(self, files: list[str], chunks: list[tuple[int, int, ArrowLike]]) -> None: ...
    @property
    def documents(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    def lengths(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tokens of each document. Raises `ValueError` for one that is not there."""

class PlanRows:
    """Rows of one stage and cell: chunks of list<struct<document, start, length>>."""

    def __init__(self, chunks: list[ArrowLike]) -> None: ...
    @property
    def rows(self) -> int: ...
    def pieces(
        self, index: NDArray[np.int64]
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
        """Pieces of the given rows: offsets, and per piece document, start and length."""

def assemble_rows(
    sources: Sequence[tuple[PlanRows, StoreCell] | None],
    cell: NDArray[np.uint16],
    index: NDArray[np.int64],
    row_length: int,
    tokens: NDArray[np.int32],
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Fills `tokens` [rows * row_length] with row `index[i]` of `sources[cell[i]]`, zero-padded.

    Returns segment offsets [rows + 1] and lengths. Raises `ValueError` where plan and store differ.
    """

# stream

class Shard:
    """An open shard; each block is checked against its xxh3 before use.

    `block_table` [blocks, 7]: offset, bytes, rows, and positions in the block of tokens, segment
    offsets, segment lengths and cells. Raises `ValueError` that names file, batch and row.
    """

    def __init__(
        self,
        path: str,
        bytes: int,
        frame: int,
        row_length: int,
        rows_per_block: int,
        block_table: NDArray[np.int64],
        block_xxh3: NDArray[np.uint64],
        row_xxh3: NDArray[np.uint64],
    ) -> None: ...
    @property
    def rows(self) -> int: ...
    def read(
        self,
        first: int,
        tokens: NDArray[np.int32],
        segment_ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        loss_mask: NDArray[np.uint8],
        cells: NDArray[np.uint16],
    ) -> None:
        """Fills flat arrays with the rows from `first` on, as many as `cells` has elements."""

def checksum_shard(
    path: str, row_length: int, block_table: NDArray[np.int64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], int, str]:
    """xxh3 of each block, of each row, of the rest of the file, and `xxh3_file` of all of it."""

def derive_rows(
    segment_offsets: NDArray[np.int32],
    segment_lengths: NDArray[np.int32],
    row_length: int,
    segment_ids: NDArray[np.int32],
    positions: NDArray[np.int32],
    loss_mask: NDArray[np.uint8],
) -> None:
    """Fills the flat arrays [rows * row_length] from the lengths of each row's documents."""
