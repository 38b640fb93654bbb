"""Rows of a run in training order, and documents of a cell: thin, named, vectorised."""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from marin._native import DocumentOrder, RowOrder, xxh3_bytes
from marin.errors import MarinError
from marin.mixture.quotas import QuotaPhase

TARGET_UNIT = 1 << 32
"""Targets and distances come in units of 2^-32 rows."""


class Places(NamedTuple):
    """Where rows come from, one entry per row."""

    stage: NDArray[np.uint16]
    cell: NDArray[np.uint16]
    position: NDArray[np.int64]
    """Rows of the cell in the stage before this one."""


class Documents(NamedTuple):
    """Documents in the order in which a cell gives them."""

    document: NDArray[np.int64]
    epoch: NDArray[np.int64]


class Order:
    """The order of a schedule's rows; see `marin.mixture.Schedule.order`.

    A batch holds the quotas' consecutive rows in a keyed permutation. Counts inside a batch are
    those of the quotas; at batch boundaries the two agree.
    """

    def __init__(
        self,
        cells: Sequence[str],
        plans: Sequence[tuple[int, Sequence[QuotaPhase]]],
        stages: Sequence[int],
        runs: Sequence[tuple[int, int]],
        seed: int,
    ) -> None:
        self.cells = tuple(cells)
        self._seed = seed
        try:
            self._native = RowOrder(plans, stages, runs, seed)
        except ValueError as error:
            raise MarinError(f"cannot plan the quotas: {error}") from None

    def __len__(self) -> int:
        return self._native.rows_total

    def rows(self, start: int, count: int) -> Places:
        """Stage, cell and position within (stage, cell) of rows `start..start + count`."""
        _check_range("rows", start, count, len(self))
        return Places(*self._native.rows(start, count))

    def locate(self, rows: NDArray[np.int64]) -> Places:
        """The same of any rows, each in time independent of its number."""
        wanted = np.ascontiguousarray(rows, np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise MarinError(f"rows {wanted.min()} to {wanted.max()} of a run of {len(self)}")
        return Places(*self._native.locate(wanted))

    def rows_of(self, cell: str, first: int, last: int) -> NDArray[np.int64]:
        """Sorted rows that `cell` gets among rows `first..last`; both at batch boundaries."""
        number = self._number(cell)
        before, after = (int(self.counts(row)[number]) for row in (first, last))
        return np.sort(self._native.rows_of(number, before, after - before))

    def counts(self, row: int) -> NDArray[np.int64]:
        """Rows that each cell got before `row`: [cells]."""
        _check_range("rows", row, 0, len(self))
        return self._native.counts_at(row)

    def targets(self, row: int) -> list[Fraction]:
        """Rows that each cell should have got before `row`, exact to 2^-32."""
        _check_range("rows", row, 0, len(self))
        return [Fraction(units, TARGET_UNIT) for units in self._native.targets_at(row)]

    @cached_property
    def stage_rows(self) -> NDArray[np.int64]:
        """Rows per stage and cell: [stages, cells]."""
        return self._native.stage_rows()

    def documents(
        self, cell: str, documents: int, start: int, count: int, share: Fraction = Fraction(1)
    ) -> Documents:
        """Documents `start..start + count` of the endless order of `cell`, which holds `documents`
        documents; each epoch is another keyed permutation of them.

        With `share` below 1 only that part of the documents, chosen by the key, ever comes.
        """
        if start < 0 or count < 0:
            raise MarinError(f"cell {cell}: documents {start} to {start + count}")
        return Documents(*self.document_order(cell, documents, share).take(start, count))

    def document_order(
        self, cell: str, documents: int, share: Fraction = Fraction(1)
    ) -> DocumentOrder:
        """The same order as an object, which hands documents to compiled code."""
        self._number(cell)
        if documents <= 0:
            raise MarinError(f"cell {cell}: {documents} documents, expected at least 1")
        key = int(xxh3_bytes(cell.encode())[:16], 16)
        seen = max(1, -(-documents * share.numerator // share.denominator))
        return DocumentOrder(self._seed, key, documents, seen)

    def worst(
        self, first: int, last: int, step: int = 1, threads: int = 0
    ) -> tuple[float, str, int]:
        """The largest distance of a cell from its target, in rows, after every `step`-th row of
        `first..last`: (distance, cell, row)."""
        units, cell, row = self._native.worst(first, last, step, threads)
        return units / TARGET_UNIT, self.cells[cell], row

    @property
    def bound(self) -> float:
        """No cell is ever off its target by more rows: proven from the shapes of the trees."""
        return self._native.bound / TARGET_UNIT

    def _number(self, cell: str) -> int:
        try:
            return self._numbers[cell]
        except KeyError:
            raise MarinError(f"no cell {cell} in this schedule") from None

    @cached_property
    def _numbers(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(self.cells)}


def _check_range(what: str, start: int, count: int, end: int) -> None:
    if start < 0 or count < 0 or start + count > end:
        raise MarinError(f"{what} {start} to {start + count}, expected within 0 to {end}")
