"""Plots of a mixture: domains by qualities, and what changed."""

from pathlib import Path
from typing import Any

import numpy as np

from marin.engine import atomic_file
from marin.errors import MarinError
from marin.mixture.diff import compare, domain_of, quality_of
from marin.mixture.epochs import exposures
from marin.mixture.specification import Specification

_FORMATS = (".png", ".svg", ".pdf")


def plot_cells(spec: Specification, path: Path) -> None:
    """A heat map of the weights per phase and one of the epochs: domains down, qualities across."""
    domains = sorted({domain_of(cell) for cell in spec.cells})
    qualities = sorted({quality_of(cell) for cell in spec.cells})
    maps = [
        (f"{phase.name}: weight, %", {c: 100 * w for c, w in phase.weights.items()})
        for phase in spec.phases
    ]
    maps.append(("epochs, all phases", {e.cell: e.total_epochs for e in exposures(spec)}))
    figure, axes = _figure(len(maps), height=2 + 0.22 * len(domains))
    for axis, (title, values) in zip(axes, maps, strict=True):
        grid = np.full((len(domains), len(qualities)), np.nan)
        for cell, value in values.items():
            grid[domains.index(domain_of(cell)), qualities.index(quality_of(cell))] = value
        image = axis.imshow(grid, aspect="auto", cmap="viridis")
        axis.set_title(title, fontsize=9)
        axis.set_xticks(range(len(qualities)), qualities, fontsize=7)
        axis.set_yticks(range(len(domains)), domains, fontsize=6)
        figure.colorbar(image, ax=axis)
    figure.suptitle(spec.name)
    _save(figure, path)


def plot_changes(before: Specification, after: Specification, path: Path) -> None:
    """Percentage points that each domain and each quality gains or loses."""
    changes = compare(before, after)
    figure, axes = _figure(2, height=2 + 0.2 * len(changes["by_domain"]))
    for axis, key in zip(axes, ("by_domain", "by_quality"), strict=True):
        group = sorted(changes[key], key=lambda change: change.name, reverse=True)
        points = [100 * change.moved for change in group]
        colors = ["tab:green" if value >= 0 else "tab:red" for value in points]
        axis.barh([change.name for change in group], points, color=colors)
        axis.axvline(0, color="black", linewidth=0.8)
        axis.set_xlabel("points of all tokens")
        axis.set_title(key.replace("_", " "), fontsize=9)
        axis.tick_params(labelsize=6)
    figure.suptitle(f"{before.name} -> {after.name}")
    _save(figure, path)


def _figure(columns: int, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * columns, height), layout="constrained")
    return figure, figure.subplots(1, columns)


def _save(figure: Any, path: Path) -> None:
    if path.suffix not in _FORMATS:
        raise MarinError(f"{path}: a plot ends in {', '.join(_FORMATS)}")
    with atomic_file(path) as partial:
        figure.savefig(partial, format=path.suffix[1:], dpi=150)
