"""From runs to the phases that the quotas are planned for, with exhausted cells dropped."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from marin.errors import MarinError
from marin.mixture.runs import Run

if TYPE_CHECKING:
    from marin.mixture.schedule import Schedule

QuotaPhase = tuple[int, tuple[float, ...]]


@dataclass(frozen=True)
class Piece:
    """Rows of one length and constant weights, one per cell of the schedule."""

    rows: int
    seq_len: int
    weights: tuple[float, ...]


def quota_phases(schedule: "Schedule") -> list[tuple[int, list[QuotaPhase]]]:
    """(first row, phases as (rows, weights)) of each revision, planned to its own horizon.

    Raises:
      MarinError: cells are to be dropped and none is left.
    """
    plans = []
    for runs, pieces in zip(schedule.planned, planned_pieces(schedule), strict=True):
        first_row = runs[0].first_row if runs else schedule.rows
        plans.append((first_row, _merged(pieces)))
    return plans


def planned_pieces(schedule: "Schedule") -> list[list[Piece]]:
    """The pieces of each revision, planned to its own horizon."""
    if schedule.exhaustion != "drop-and-renormalize":
        return [list(_pieces(schedule, runs)) for runs in schedule.planned]
    used = [Fraction(0)] * len(schedule.cells)
    result = []
    for number, runs in enumerate(schedule.planned):
        pieces = _dropping(_pieces(schedule, runs), used, capacities(schedule, number), schedule)
        result.append(pieces)
        if number + 1 < len(schedule.planned):
            step = schedule.revisions[number + 1].step
            rows = schedule.row_at(step) - (runs[0].first_row if runs else schedule.row_at(step))
            used = _consumed(pieces, rows, used)
    return result


def realized_pieces(schedule: "Schedule") -> list[Piece]:
    """The pieces that the run goes through, each revision up to the next one."""
    result: list[Piece] = []
    plans = planned_pieces(schedule)
    starts = [schedule.row_at(revision.step) for revision in schedule.revisions]
    for pieces, start, end in zip(plans, starts, [*starts[1:], schedule.rows], strict=True):
        result.extend(_first_rows(pieces, end - start))
    return result


def consumption(pieces: Iterable[Piece], cells: int) -> list[Fraction]:
    """Target tokens of each cell, exactly."""
    used = [Fraction(0)] * cells
    for piece in pieces:
        for cell, share in enumerate(_shares(piece.weights)):
            used[cell] += share * piece.rows * piece.seq_len
    return used


def capacities(schedule: "Schedule", number: int) -> list[Fraction | None]:
    """Tokens that each cell may give to the run, as revisions up to `number` say; None for no
    limit, or for a cell that only later ones name."""
    latest: dict[str, Fraction | None] = {}
    for revision in schedule.revisions[: number + 1]:
        spec = revision.specification
        for cell, tokens in spec.available_tokens.items():
            cap = spec.epoch_cap
            latest[cell] = None if cap is None else tokens * Fraction(str(cap)) * schedule.share
    return [latest.get(cell) for cell in schedule.cells]


def _pieces(schedule: "Schedule", runs: Sequence[Run]) -> Iterator[Piece]:
    for run in runs:
        phase = schedule.revisions[run.revision].specification.phases[run.phase_index]
        weights = tuple(float(phase.weights.get(cell, 0.0)) for cell in schedule.cells)
        yield Piece(run.rows, run.seq_len, weights)


def _dropping(
    pieces: Iterable[Piece],
    used: Sequence[Fraction],
    capacity: Sequence[Fraction | None],
    schedule: "Schedule",
) -> list[Piece]:
    """The pieces, cut where a cell's target reaches its last whole row: it weighs 0 from there."""
    used = list(used)
    gone: set[int] = set()
    result = []
    for piece in pieces:
        rest = piece.rows
        while rest:
            weights = tuple(0.0 if c in gone else w for c, w in enumerate(piece.weights))
            if not any(weights):
                names = ", ".join(schedule.cells[c] for c in sorted(gone)[:4])
                raise MarinError(
                    f"every cell is exhausted (first {names}) with {rest} rows of {piece.seq_len} "
                    "tokens to go; raise the epoch cap or shorten the horizon"
                )
            shares = _shares(weights)
            lasts = {
                # A revision may allow less than was used.
                c: (max(limit - used[c], Fraction(0)) // piece.seq_len) / shares[c]
                for c, limit in enumerate(capacity)
                if limit is not None and shares[c]
            }
            rows = min([rest, *(int(last) for last in lasts.values())])
            if rows:
                result.append(Piece(rows, piece.seq_len, weights))
                for cell, share in enumerate(shares):
                    used[cell] += share * rows * piece.seq_len
            gone.update(c for c, last in lasts.items() if int(last) == rows < rest)
            rest -= rows
    return result


def _consumed(pieces: Iterable[Piece], rows: int, used: Sequence[Fraction]) -> list[Fraction]:
    added = consumption(_first_rows(pieces, rows), len(used))
    return [before + more for before, more in zip(used, added, strict=True)]


def _first_rows(pieces: Iterable[Piece], rows: int) -> Iterator[Piece]:
    for piece in pieces:
        if rows <= 0:
            return
        yield replace(piece, rows=min(rows, piece.rows))
        rows -= piece.rows


def _merged(pieces: Iterable[Piece]) -> list[QuotaPhase]:
    phases: list[QuotaPhase] = []
    for piece in pieces:
        if phases and phases[-1][1] == piece.weights:
            phases[-1] = (phases[-1][0] + piece.rows, piece.weights)
        else:
            phases.append((piece.rows, piece.weights))
    return phases


def _shares(weights: Sequence[float]) -> list[Fraction]:
    exact = [Fraction(weight) for weight in weights]
    total = sum(exact)
    return [weight / total for weight in exact]
