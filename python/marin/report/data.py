"""The data part of a report, from the summaries in the stages' manifests."""

from collections.abc import Mapping, Sequence
from typing import Any

from marin.report import charts
from marin.report.page import Page

Summary = Mapping[str, Any]


def add_duplicates(page: Page, dedup: Summary, *, examples: int = 3) -> None:
    """What deduplication removed, by source, with pairs side by side."""
    section = page.section(
        "Duplicates",
        "Exact duplicates share their normalized text. A near duplicate was removed because a "
        "kept document's shingles match its own at or above the threshold, by exact Jaccard.",
    )
    section.fact("documents", int(dedup["documents"]))
    section.fact("kept", int(dedup["kept"]))
    section.fact("removed, exact", int(dedup["removed_exact"]))
    section.fact("removed, near", int(dedup["removed_fuzzy"]))
    edges = [edge for edge, _ in dedup["similarity_histogram"]]
    counts = [count for _, count in dedup["similarity_histogram"]]
    if sum(counts):
        section.plot(
            "Similarity of the removed near duplicates to their kept twins.",
            charts.histogram([*edges, 1.0], counts, x="Jaccard similarity", y="documents"),
        )
    section.table(
        ["source", "documents", "removed, exact", "removed, near"],
        [
            [row["source"], row["documents"], row["removed_exact"], row["removed_fuzzy"]]
            for row in dedup["by_source"]
        ],
    )
    for pair in dedup["examples"][:examples]:
        section.pair(
            (f"removed: {pair['removed']}", pair["removed_text"]),
            (f"kept: {pair['kept']} (similarity {pair['similarity']:.3f})", pair["kept_text"]),
        )


def add_cells(page: Page, store: Summary) -> None:
    """Domains with their terms, and tokens by domain and quality."""
    section = page.section(
        "Cells",
        "Every kept document belongs to one cell: a domain (cluster of similar documents) and a "
        "quality bucket from q0, lowest, to q4.",
    )
    cells = store["cells"]
    section.fact("cells with documents", len(cells))
    section.fact("tokens", sum(cell["tokens"] for cell in cells.values()))
    section.fact("held out for validation, documents", store["validation"]["documents"])
    domains = store["domains"]
    qualities = sorted({name[name.index("q") :] for name in cells})
    tokens = [
        [cells.get(f"c{d:02d}{q}", {"tokens": 0})["tokens"] for q in qualities]
        for d in range(len(domains))
    ]
    section.plot(
        "Tokens by domain (rows) and quality bucket (columns).",
        charts.heatmap(tokens, x="quality", y="domain", label="tokens"),
    )
    section.table(
        ["domain", "documents", "typical terms"],
        [
            [f"c{index:02d}", domain["documents"], ", ".join(domain["terms"])]
            for index, domain in enumerate(domains)
        ],
    )


def add_mixture(
    page: Page, metrics: Sequence[Summary], available: Mapping[str, int] | None = None
) -> None:
    """Target and realized tokens per cell, as the last record of a run that holds them says.

    Without such a record there is no section. `available` are the tokens of each cell in the store:
    then there is a column of epochs.
    """
    last = next((record for record in reversed(metrics) if "cells" in record), None)
    if last is None:
        return
    realized: Mapping[str, int] = last["cells"]
    target: Mapping[str, float] = last.get("cells_target", {})
    section = page.section(
        "Mixture",
        f"Positions per cell in the first {int(last['step']) + 1:,} steps, padding included. Each "
        "cell stays within 1.5 rows of its target at every row of the run.",
    )
    groups = {
        "target": [target.get(cell, 0.0) for cell in realized],
        "realized": [float(tokens) for tokens in realized.values()],
    }
    if not target:
        del groups["target"]
    section.plot(
        "Tokens per cell: what the mixture asks for, and what the run read.",
        charts.bars(list(realized), groups, y="tokens"),
    )
    section.table(
        ["cell", "target tokens", "realized tokens", *(["epochs"] if available else [])],
        [
            [
                cell,
                round(target[cell]) if cell in target else "",
                tokens,
                *([tokens / available[cell]] if available else []),
            ]
            for cell, tokens in realized.items()
        ],
    )
