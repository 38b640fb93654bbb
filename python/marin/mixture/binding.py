"""Weights belong to one store: they are checked against it, and moved to another on request."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from marin.engine import read_manifest
from marin.errors import MarinError
from marin.mixture.specification import Specification, named, scaled_to_one


@dataclass(frozen=True)
class StoreCells:
    """A store as a mixture sees it: its fingerprint and the tokens of each cell."""

    fingerprint: str
    tokens: Mapping[str, int]


@dataclass(frozen=True)
class StoreDiff:
    """How a store differs from what a specification was written for."""

    missing: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[tuple[str, int, int], ...]
    """Cell, tokens in the specification, tokens in the store."""
    renamed: tuple[tuple[str, str], ...]
    """Pairs of a missing and an added cell with the same number of tokens."""

    def __bool__(self) -> bool:
        return bool(self.missing or self.added or self.changed)

    def __str__(self) -> str:
        parts = []
        if self.renamed:
            pairs = [f"{old} is now {new}" for old, new in self.renamed]
            parts.append(f"renamed, by their tokens: {named(pairs)}")
        known = {old for old, _ in self.renamed}
        if missing := [cell for cell in self.missing if cell not in known]:
            parts.append(f"missing: {named(missing)}")
        known = {new for _, new in self.renamed}
        if added := [cell for cell in self.added if cell not in known]:
            parts.append(f"new: {named(added)}")
        if self.changed:
            figures = [f"{cell} {old} -> {new} tokens" for cell, old, new in self.changed]
            parts.append(f"changed: {named(figures)}")
        return "; ".join(parts)


def read_store(directory: Path) -> StoreCells:
    """The cells of a store's manifest.

    Raises:
      MarinError: the directory is no finished store.
    """
    manifest = read_manifest(directory)
    try:
        tokens = {cell: int(v["tokens"]) for cell, v in manifest.summary["cells"].items()}
    except (KeyError, TypeError, ValueError):
        raise MarinError(f"{directory}: the manifest lists no cells, so it is no store") from None
    return StoreCells(manifest.fingerprint, tokens)


def compare_store(spec: Specification, store: StoreCells) -> StoreDiff:
    """What `store` has otherwise than `spec` says."""
    old, new = spec.available_tokens, store.tokens
    missing = tuple(sorted(old.keys() - new.keys()))
    added = tuple(sorted(new.keys() - old.keys()))
    changed = tuple(
        (cell, old[cell], new[cell]) for cell in sorted(old.keys() & new) if old[cell] != new[cell]
    )
    by_tokens: dict[int, list[str]] = {}
    for cell in added:
        by_tokens.setdefault(new[cell], []).append(cell)
    renamed = tuple(
        (cell, by_tokens[old[cell]].pop(0)) for cell in missing if by_tokens.get(old[cell])
    )
    return StoreDiff(missing, added, changed, renamed)


def check_store(spec: Specification, store: StoreCells) -> None:
    """Refuses a store other than the one that the weights were made for.

    Raises:
      MarinError: cells are missing, new, renamed or of another size, or the store was rebuilt; the
        message says which and what to do.
    """
    advice = "marin mix rebase writes the mixture for this store"
    if diff := compare_store(spec, store):
        raise MarinError(f"mixture {spec.name} does not fit the store: {diff}; {advice}")
    if spec.store and spec.store != store.fingerprint:
        raise MarinError(
            f"mixture {spec.name} is bound to store {spec.store}, found {store.fingerprint} with "
            f"the same cells and sizes but other content; {advice}"
        )


def rebase(
    spec: Specification,
    store: StoreCells,
    *,
    renames: Mapping[str, str] | None = None,
    drop_missing: bool = False,
) -> Specification:
    """The same weights for another store: bound to it, with its available tokens.

    `renames` maps cells of the specification to cells of the store. Cells that only the store has
    get the weight 0. With `drop_missing`, cells that it lacks lose their weight to the others in
    proportion; so do cells that it holds without tokens.

    Raises:
      MarinError: cells with a weight are missing, a rename names no cell, or nothing is left.
    """
    renames = dict(renames or {})
    for old, new in renames.items():
        if old not in spec.available_tokens or new not in store.tokens:
            raise MarinError(
                f"rename {old}={new}: expected a cell of the mixture and one of the store"
            )
    target = {cell: renames.get(cell, cell) for cell in spec.cells}
    if len(set(target.values())) < len(target):
        raise MarinError(f"renames {renames} give two cells the same name")
    lost = {cell for cell in spec.cells if not store.tokens.get(target[cell])}
    used = {c for phase in spec.phases for c, weight in phase.weights.items() if weight > 0}
    if lost & used and not drop_missing:
        hint = compare_store(spec, store).renamed
        renamed = "".join(f" --rename {old}={new}" for old, new in hint if old not in renames)
        raise MarinError(
            f"cells {named(lost & used)} have a weight and no tokens in the store; rename them"
            f"{renamed and ' (' + renamed.strip() + ' fits by tokens)'} or pass --drop-missing"
        )
    phases = []
    for phase in spec.phases:
        weights = dict.fromkeys(store.tokens, 0.0)
        weights.update({target[c]: weight for c, weight in phase.weights.items() if c not in lost})
        if not any(weights.values()):
            raise MarinError(f"phase {phase.name}: no cell with a weight is left in the store")
        moved = bool(lost & used)
        phases.append(replace(phase, weights=scaled_to_one(weights) if moved else weights))
    return replace(
        spec,
        phases=tuple(phases),
        available_tokens=dict(store.tokens),
        store=store.fingerprint,
    )
