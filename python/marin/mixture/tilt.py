"""A specification for a store of one's own: its natural shares, tilted towards quality."""

import re
from collections.abc import Mapping, Sequence
from fractions import Fraction

from marin.errors import MarinError
from marin.mixture.specification import Phase, Specification, named

_QUALITY = re.compile(r"q(\d+)$")


def tilted(
    name: str,
    available_tokens: Mapping[str, int],
    phases: Sequence[tuple[str, int, float]],
    *,
    epoch_cap: float | None = None,
    store: str = "",
) -> Specification:
    """Phases of `(name, tokens, tilt)`: a cell of quality bucket q (`c03q2`: 2) gets a weight in
    proportion to its tokens times `tilt ** q`; a tilt of 1 keeps the natural shares.

    Cells without tokens get the weight 0.

    Raises:
      MarinError: no cell has tokens, a name has no quality bucket, or a tilt is not above 0.
    """
    if not any(available_tokens.values()):
        raise MarinError(f"mixture {name}: none of its {len(available_tokens)} cells has tokens")
    unnamed = [cell for cell in available_tokens if not _QUALITY.search(cell)]
    if unnamed:
        raise MarinError(
            f"mixture {name}: cells {named(unnamed)} name no quality bucket, expected as in c03q2"
        )
    return Specification(
        name=name,
        phases=tuple(
            Phase(phase, tokens, _weights(name, available_tokens, tilt))
            for phase, tokens, tilt in phases
        ),
        available_tokens=dict(available_tokens),
        epoch_cap=epoch_cap,
        store=store,
    )


def _weights(name: str, available: Mapping[str, int], tilt: float) -> dict[str, float]:
    if not tilt > 0:
        raise MarinError(f"mixture {name}: tilt {tilt}, expected a number above 0")
    exact = {cell: tokens * Fraction(tilt) ** _bucket(cell) for cell, tokens in available.items()}
    total = sum(exact.values())
    return {cell: float(exact[cell] / total) for cell in sorted(exact)}


def _bucket(cell: str) -> int:
    found = _QUALITY.search(cell)
    assert found is not None  # checked by the caller
    return int(found.group(1))
