"""The page on a deduplication: what went, from where, why, and twenty pairs to judge it by."""

import re
from difflib import SequenceMatcher
from pathlib import Path

import polars as pl
from markupsafe import Markup, escape

from marin.engine import read_manifest
from marin.report import charts
from marin.report.page import Page

CLUSTERS = 20
ALARM_SHARE = 0.5
"""A source that loses more than this share of its documents is named at the top."""


def write_dedup_report(
    directory: Path, path: Path | None = None, *, alarm_share: float = ALARM_SHARE
) -> Path:
    """Draws the manifest of a finished dedup `directory`, by default as `report.html` in it.

    Raises:
      MarinError: the directory is not finished.
    """
    summary = read_manifest(directory).summary
    sources = alarms(summary["by_source"], alarm_share)
    page = Page("Deduplication", str(directory))
    overview = page.section("Overview", _warning(sources, alarm_share))
    for name in ("documents", "kept", "removed_exact", "removed_fuzzy", "empty", "short"):
        overview.fact(name.replace("_", " "), summary[name])
    overview.fact("pairs compared", summary["compared_pairs"])
    overview.fact("expected misses", f"{summary['expected_misses']:.3%}")

    section = page.section("Removed by source")
    section.table(
        ("source", "documents", "exact", "fuzzy", "share removed", "alarm"),
        [
            (
                row["source"] or "(none)",
                row["documents"],
                row["removed_exact"],
                row["removed_fuzzy"],
                removed_share(row),
                "yes" if row["source"] in sources else "",
            )
            for row in sorted(summary["by_source"], key=removed_share, reverse=True)
        ],
    )

    section = page.section(
        "Similarity and clusters",
        "Fuzzy removals by their similarity to the kept document, sizes of the clusters, and how "
        "likely a pair is to be proposed for comparison.",
    )
    histogram = summary["similarity_histogram"]
    if histogram:
        edges = [edge for edge, _ in histogram] + [1.0]
        counts = [count for _, count in histogram]
        section.plot(
            "Fuzzy removals", charts.histogram(edges, counts, x="similarity", y="documents")
        )
    sizes = summary["cluster_sizes"][:30]
    if sizes:
        bars = charts.bars(
            [str(size) for size, _ in sizes], {"clusters": [n for _, n in sizes]}, y="clusters"
        )
        section.plot("Clusters by size", bars)
    curve = summary["hit_rates"]
    series = {"hit rate": ([s for s, _ in curve], [rate for _, rate in curve])}
    section.plot("Chance to be proposed", charts.lines(series, x="similarity", y="probability"))

    section = page.section("Largest clusters", "Each under the id of its kept document.")
    section.table(
        ("cluster", "documents", "exact", "fuzzy", "least similarity"),
        largest_clusters(directory, CLUSTERS),
    )

    section = page.section(
        "Pairs", "Removed on the left, kept on the right; differences are marked."
    )
    for pair in summary["examples"]:
        left, right = mark_differences(pair["removed_text"], pair["kept_text"])
        heading = f"{pair['removed']}: {pair['reason']}, {pair['similarity']:.3f}"
        section.pair((heading, left), (pair["kept"], right))
    path = path or directory / "report.html"
    page.write(path)
    return path


def largest_clusters(directory: Path, count: int) -> list[tuple[str, int, int, int, float]]:
    """(cluster, documents, removed as exact, as fuzzy, least similarity to the kept one)."""
    files = [directory / entry.name for entry in read_manifest(directory).files]
    clusters = (
        pl.scan_parquet(files)
        .filter(~pl.col("keep"))
        .group_by("cluster")
        .agg(
            documents=pl.len() + 1,
            exact=(pl.col("reason") == "exact").sum(),
            fuzzy=(pl.col("reason") == "fuzzy").sum(),
            similarity=pl.col("similarity").min().cast(pl.Float64).round(3),
        )
        .sort("documents", "cluster", descending=[True, False])
        .head(count)
    )
    return clusters.collect().rows()


def removed_share(row: dict[str, int]) -> float:
    return (row["removed_exact"] + row["removed_fuzzy"]) / max(row["documents"], 1)


def alarms(by_source: list[dict[str, int]], share: float) -> list[str]:
    """Sources that lose more than `share` of their documents."""
    return [str(row["source"]) for row in by_source if removed_share(row) > share]


def mark_differences(a: str, b: str) -> tuple[Markup, Markup]:
    """Both texts, escaped, with the words that are not in the other marked."""
    left, right = (re.findall(r"\w+|\W", text) for text in (a, b))
    marked: tuple[list[str], list[str]] = ([], [])
    for kind, i, j, k, m in SequenceMatcher(None, left, right, autojunk=False).get_opcodes():
        for out, piece in ((marked[0], left[i:j]), (marked[1], right[k:m])):
            text = escape("".join(piece))
            out.append(
                str(text if kind == "equal" or not piece else Markup("<mark>%s</mark>") % text)
            )
    return Markup("".join(marked[0])), Markup("".join(marked[1]))


def _warning(sources: list[str], share: float) -> str:
    if not sources:
        return f"No source loses more than {share:.0%} of its documents."
    names = ", ".join(source or "(none)" for source in sources)
    return f"Alarm: more than {share:.0%} of the documents go from {names}."
