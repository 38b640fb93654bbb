"""How often each cell is seen, per phase and over all of them."""

from dataclasses import dataclass
from fractions import Fraction

from marin.errors import MarinError
from marin.mixture.specification import Specification, named

MANY_EPOCHS = 16
"""A mixture without a cap that repeats a cell more often gets a warning."""


@dataclass(frozen=True)
class Exposure:
    """One cell: its tokens and epochs in each phase, and the epochs over all phases."""

    cell: str
    tokens: tuple[float, ...]
    epochs: tuple[float, ...]
    total_epochs: float


def exposures(spec: Specification) -> tuple[Exposure, ...]:
    """What the published budgets make of each cell, in the order of `spec.cells`. A cell without
    tokens has 0 epochs: it may have no weight."""
    totals = [sum(map(Fraction, phase.weights.values()), Fraction(0)) for phase in spec.phases]
    result = []
    for cell in spec.cells:
        tokens = [
            Fraction(phase.weights[cell]) / total * phase.tokens
            for phase, total in zip(spec.phases, totals, strict=True)
        ]
        available = spec.available_tokens[cell] or 1
        result.append(
            Exposure(
                cell=cell,
                tokens=tuple(map(float, tokens)),
                epochs=tuple(float(count / available) for count in tokens),
                total_epochs=float(sum(tokens, Fraction(0)) / available),
            )
        )
    return tuple(result)


def check_cap(spec: Specification) -> None:
    """Raises `MarinError`, naming cells and epochs, if the budgets exceed the cap."""
    if spec.epoch_cap is None:
        return
    over = {e.cell: e.total_epochs for e in exposures(spec) if e.total_epochs > spec.epoch_cap}
    if over:
        worst = max(over, key=lambda cell: over[cell])
        raise MarinError(
            f"mixture {spec.name}: cells {named(over)} exceed the cap of {spec.epoch_cap} epochs, "
            f"most of all {worst} with {over[worst]:.4g}; lower their weights or raise epoch_cap"
        )


def warnings(spec: Specification) -> list[str]:
    """What is legal and yet deserves a look."""
    found = []
    idle = [e.cell for e in exposures(spec) if e.total_epochs == 0]
    if idle:
        tokens = sum(spec.available_tokens[cell] for cell in idle)
        found.append(f"cells {named(idle)} are never used ({tokens:,} tokens)")
    if spec.epoch_cap is not None:
        near = [
            f"{e.cell} ({e.total_epochs:.3g})"
            for e in exposures(spec)
            if 0.9 * spec.epoch_cap < e.total_epochs <= spec.epoch_cap
        ]
        if near:
            found.append(
                f"cells {named(near)} are within 10 % of the cap of {spec.epoch_cap} epochs"
            )
    if spec.epoch_cap is None:
        often = {e.cell: e.total_epochs for e in exposures(spec) if e.total_epochs > MANY_EPOCHS}
        if often:
            most = max(often, key=lambda cell: often[cell])
            found.append(
                f"cells {named(often)} are repeated more than {MANY_EPOCHS} times, most of all "
                f"{most} with {often[most]:,.4g} epochs; epoch_cap in the mixture limits it"
            )
    if not spec.store:
        found.append("not bound to a store; marin mix rebase SPEC STORE binds it")
    return found
