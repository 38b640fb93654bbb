"""Plots as inline SVG by matplotlib, with one look, the same bytes for the same data."""

import io
import re
import unicodedata
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLORS = ("#0b6e99", "#c8553d", "#3d8b5f", "#8a5fb0", "#b8860b", "#5b6b7b")
# `Any`: matplotlib types each key of its parameters on its own.
_STYLE: Any = {
    "axes.grid": True,
    "axes.prop_cycle": cycler(linestyle=["-", "--"]) * cycler(color=COLORS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "marin",
}
_SIZE = (6.4, 3.2)  # inches
_LABEL_CHARACTERS = 48

Series = Mapping[str, tuple[Sequence[float], Sequence[float]]]


def lines(
    series: Series,
    *,
    x: str,
    y: str,
    log: bool = False,
    levels: Mapping[str, float] | None = None,
    events: Mapping[str, float] | None = None,
) -> Markup:
    """Curves by name; `levels` are horizontal lines, `events` vertical ones with their name."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(x, y)
        for name, (xs, ys) in series.items():
            axes.plot(xs, ys, label=_plain(name), linewidth=1.4)
        for color, (name, level) in zip(COLORS[1:], (levels or {}).items(), strict=False):
            axes.axhline(level, linestyle="--", linewidth=1, color=color, label=_plain(name))
        for name, position in (events or {}).items():
            axes.axvline(position, linestyle=":", linewidth=1, color=COLORS[-1])
            axes.annotate(
                _plain(name), (position, 1), xycoords=("data", "axes fraction"),
                xytext=(3, -8), textcoords="offset points", fontsize=7, color=COLORS[-1],
            )  # fmt: skip
        if log:
            axes.set_yscale("log")
        if len(series) + len(levels or {}) > 1:
            axes.legend()
        return _svg(figure)


def bars(names: Sequence[str], groups: Mapping[str, Sequence[float]], *, y: str) -> Markup:
    """Groups of bars side by side, one bar of each group per name."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes("", y)
        positions = np.arange(len(names))
        width = 0.8 / max(len(groups), 1)
        for index, (label, values) in enumerate(groups.items()):
            offset = (index - (len(groups) - 1) / 2) * width
            axes.bar(positions + offset, values, width, label=_plain(label))
        axes.set_xticks(positions, [_plain(name) for name in names], rotation=90, fontsize=6)
        axes.margins(x=0.01)
        if len(groups) > 1:
            axes.legend()
        return _svg(figure)


def histogram(edges: Sequence[float], counts: Sequence[int], *, x: str, y: str) -> Markup:
    """Counts between consecutive edges (one more edge than counts)."""
    with mpl.rc_context(_STYLE):
        figure, axes = _axes(x, y)
        axes.stairs(counts, edges, fill=True)
        return _svg(figure)


def heatmap(
    values: Sequence[Sequence[float]], *, x: str, y: str, label: str, center: float | None = None
) -> Markup:
    """A matrix, row 0 at the bottom; `center` puts white there and colors both sides."""
    with mpl.rc_context(_STYLE | {"axes.grid": False}):
        figure, axes = _axes(x, y)
        matrix = np.asarray(values, dtype=float)
        if center is None:
            image = axes.imshow(matrix, aspect="auto", origin="lower", cmap="viridis")
        else:
            reach = max(float(np.nanmax(np.abs(matrix - center))), 1e-12)
            image = axes.imshow(
                matrix, aspect="auto", origin="lower", cmap="RdBu_r",
                vmin=center - reach, vmax=center + reach,
            )  # fmt: skip
        for axis in (axes.xaxis, axes.yaxis):  # rows and columns have no halves
            axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        figure.colorbar(image, label=_plain(label))
        return _svg(figure)


def _axes(x: str, y: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.set_xlabel(_plain(x))
    axes.set_ylabel(_plain(y))
    return figure, axes


def _plain(text: str) -> str:
    """`$` would start a formula, control characters break the SVG, long names the layout."""
    if len(text) > _LABEL_CHARACTERS:
        text = text[: _LABEL_CHARACTERS - 1] + "…"
    printable = "".join(" " if unicodedata.category(c)[0] == "C" else c for c in text)
    return printable.replace("$", r"\$")


def _svg(figure: Figure) -> Markup:
    out = io.StringIO()
    with warnings.catch_warnings():
        # Texts stay texts in the SVG: glyphs that matplotlib's font lacks, the browser has.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    # Only the element itself: the XML prologue does not belong inside a page.
    return Markup(re.sub(r"^.*?(?=<svg )", "", text, count=1, flags=re.DOTALL))
