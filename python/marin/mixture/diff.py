"""What differs between two specifications, by domain, by quality and by cell."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from marin.mixture.epochs import exposures
from marin.mixture.specification import Specification

_CELL = re.compile(r"(?P<domain>.*)(?P<quality>q\d+)$")


@dataclass(frozen=True)
class Change:
    """One domain, quality or cell: its share of all tokens in both, and its epochs."""

    name: str
    before: float
    after: float
    epochs_before: float
    epochs_after: float

    @property
    def moved(self) -> float:
        return self.after - self.before


def domain_of(cell: str) -> str:
    """`c07q3` belongs to domain `c07`; a name of another form is its own domain."""
    match = _CELL.match(cell)
    return match["domain"] if match else cell


def quality_of(cell: str) -> str:
    """`c07q3` has quality `q3`; a name of another form has none (`-`)."""
    match = _CELL.match(cell)
    return match["quality"] if match else "-"


def compare(before: Specification, after: Specification) -> dict[str, list[Change]]:
    """Changes `by_domain`, `by_quality` and `by_cell`, the largest first. A cell that one of the
    two lacks counts as 0 there."""
    return {
        "by_domain": _grouped(before, after, domain_of),
        "by_quality": _grouped(before, after, quality_of),
        "by_cell": _grouped(before, after, lambda cell: cell),
    }


def shares(spec: Specification, group: Callable[[str], str]) -> dict[str, tuple[float, float]]:
    """Each group's share of all tokens of the budget, and its epochs."""
    tokens: dict[str, float] = {}
    available: dict[str, int] = {}
    for exposure in exposures(spec):
        name = group(exposure.cell)
        tokens[name] = tokens.get(name, 0.0) + sum(exposure.tokens)
        available[name] = available.get(name, 0) + spec.available_tokens[exposure.cell]
    return {
        name: (count / spec.tokens, count / (available[name] or 1))
        for name, count in sorted(tokens.items())
    }


def _grouped(
    before: Specification, after: Specification, group: Callable[[str], str]
) -> list[Change]:
    old, new = shares(before, group), shares(after, group)
    nothing = (0.0, 0.0)
    changes = []
    for name in sorted(old.keys() | new.keys()):
        (share_old, epochs_old), (share_new, epochs_new) = (
            old.get(name, nothing),
            new.get(name, nothing),
        )
        changes.append(Change(name, share_old, share_new, epochs_old, epochs_new))
    return sorted(changes, key=lambda change: (-abs(change.moved), change.name))
