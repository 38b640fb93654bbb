"""HTML pages about a build, one per stage, from manifests alone (samples from small reads)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from marin.datakit.parts import part_names, read_groups, read_part
from marin.engine import Manifest, read_manifest, stage_directory
from marin.report import charts
from marin.report.page import Page

_SAMPLES_PER_BUCKET = 2
_SAMPLE_CHARACTERS = 1000
_LENGTH_BINS = 40
_SHOWN = ("corpus", "contamination", "dedup", "tokens", "domains", "quality", "store")


def write_reports(done: Mapping[str, Path], root: Path) -> Path:
    """The pages of a build (`build`'s directories by step) as a stage of their own; returns its
    directory, in which `store.html` is the page to begin with."""
    manifests = {name: read_manifest(done[name]) for name in _SHOWN if name in done}
    inputs = {name: manifest.fingerprint for name, manifest in manifests.items()}
    with stage_directory(root, "reports", {}, inputs) as stage:
        if not stage.finished:
            pages = {
                "sources": _sources(manifests["corpus"]),
                "removals": _removals(manifests["dedup"], manifests.get("contamination")),
                "tokens": _tokens(done["tokens"], manifests["tokens"]),
                "domains": _domains(manifests["domains"]),
                "quality": _quality(done["corpus"], done["quality"], manifests["quality"]),
                "store": _store(manifests["store"]),
            }
            for name, page in pages.items():
                page.write(stage.path / f"{name}.html")
            stage.finish(rows={f"{name}.html": 0 for name in pages})
    return stage.path


def _page(title: str, text: str) -> Page:
    return Page(title, text, "Written by marin datakit.")


def _sources(manifest: Manifest) -> Page:
    page = _page("Sources", "What was read, and what was quarantined.")
    summary = manifest.summary
    section = page.section("Documents")
    for key in ("documents", "bytes", "repaired", "quarantined"):
        section.fact(key, summary[key])
    columns = ("source", "documents", "bytes", "repaired", "quarantined", "renamed_ids")
    section.table(columns, [[s.get(key, 0) for key in columns] for s in summary["sources"]])
    reasons = page.section("Quarantine", "Records that are no documents, by reason.")
    reasons.table(
        ("source", "reason", "records"),
        [
            (source["source"], reason, count)
            for source in summary["sources"]
            for reason, count in source.get("reasons", {}).items()
        ],
    )
    return page


def _removals(dedup: Manifest, contamination: Manifest | None) -> Page:
    page = _page("Removals", "Duplicates and contaminated documents.")
    section = page.section("By reason")
    section.fact("documents", dedup.summary["documents"])
    section.fact("kept", dedup.summary["kept"])
    for key, value in dedup.summary.items():
        if key.startswith("removed_"):
            section.fact(key.removeprefix("removed_"), value)
    columns = ("source", "documents", "removed_exact", "removed_fuzzy", "removed_before")
    rows = [[row.get(key) or 0 for key in columns] for row in dedup.summary["by_source"]]
    section.table(columns, rows)
    pairs = page.section("Duplicates", "Removed on the left, kept on the right.")
    for example in dedup.summary["examples"]:
        shown = f"{example['reason']}, similarity {example['similarity']:.3f}"
        pairs.pair(
            (f"{example['removed']} ({shown})", example["removed_text"]),
            (str(example["kept"]), example["kept_text"]),
        )
    if contamination is not None and (found := contamination.summary["contaminated"]):
        evidence = page.section("Contamination", "The passage found, and the share of the item.")
        evidence.table(
            ("document", "evaluation item", "share", "passage"),
            [[e["id"], e["representative"], e["similarity"], e["evidence"]] for e in found],
        )
    return page


def _tokens(directory: Path, manifest: Manifest) -> Page:
    page = _page("Tokens", "Lengths of all documents before removals.")
    section = page.section("Tokens")
    section.fact("tokens", manifest.summary["tokens"])
    for key, value in manifest.summary["tokenizer"].items():
        section.fact(key, value)
    counts = np.zeros(_LENGTH_BINS, dtype=np.int64)
    for part in part_names(manifest):
        for batch in read_groups(directory / part, ["tokens"]):
            lengths = pc.list_value_length(batch["tokens"]).drop_null().to_numpy()
            bins = np.log2(np.maximum(lengths, 1)).astype(np.int64)
            counts += np.bincount(bins, minlength=_LENGTH_BINS)
    last = int(np.flatnonzero(counts).max(initial=0)) + 1
    edges = [float(edge) for edge in range(last + 1)]
    section.plot(
        "Documents by length: powers of two of tokens",
        charts.histogram(edges, counts[:last].tolist(), x="log2 tokens", y="documents"),
    )
    return page


def _domains(manifest: Manifest) -> Page:
    page = _page("Domains", "Clusters of the kept documents, named by what distinguishes them.")
    found = manifest.summary["domains"]
    overview = page.section("All domains")
    names = [f"c{index:02d}" for index in range(len(found))]
    sizes = [domain["documents"] for domain in found]
    overview.plot("Documents per domain", charts.bars(names, {"documents": sizes}, y="documents"))
    rows = [
        (name, domain["name"], domain["documents"], ", ".join(domain["terms"]))
        for name, domain in zip(names, found, strict=True)
    ]
    overview.table(("cell", "name", "documents", "terms"), rows)
    for name, domain in zip(names, found, strict=True):
        section = page.section(f"{name} {domain['name']}")
        section.pair(*((example["id"], example["text"]) for example in domain["examples"]))
    return page


def _quality(documents: Path, directory: Path, manifest: Manifest) -> Page:
    page = _page("Quality", "Buckets per kind of content, 0 the lowest, with samples.")
    kinds = manifest.summary["kinds"]
    section = page.section("Buckets")
    buckets = [f"q{bucket}" for bucket in range(len(manifest.summary["buckets"]))]
    section.table(("kind", *buckets), [(k["kind"], *k["documents"]) for k in kinds])
    section.table(
        ("kind", *(f"from {bucket}" for bucket in buckets[1:])),
        [(k["kind"], *k["thresholds"]) for k in kinds],
    )
    for bucket, samples in enumerate(_samples(documents, directory, manifest, len(buckets))):
        if samples:
            page.section(f"q{bucket}").pair(*samples)
    return page


def _samples(
    documents: Path, directory: Path, manifest: Manifest, buckets: int
) -> Sequence[list[tuple[str, str]]]:
    """The first documents of each bucket in the first part."""
    found: list[list[tuple[str, str]]] = [[] for _ in range(buckets)]
    for part in part_names(manifest)[:1]:
        labels = read_part(directory / part, ["bucket", "score"])
        start = 0
        for batch in read_groups(documents / part, ["id", "text"]):
            own = labels["bucket"][start : start + len(batch)]
            for bucket in range(buckets):
                rows = pc.indices_nonzero(pc.equal(own, pa.scalar(bucket, pa.uint8())))
                room = _SAMPLES_PER_BUCKET - len(found[bucket])
                for row in rows[:room].to_pylist():
                    score = labels["score"][start + row].as_py()
                    heading = f"{batch['id'][row].as_py()}, score {score:.3f}"
                    text = (batch["text"][row].as_py() or "")[:_SAMPLE_CHARACTERS]
                    found[bucket].append((heading, text))
            start += len(batch)
    return found


def _store(manifest: Manifest) -> Page:
    page = _page("Store", "Tokens by domain and quality.")
    summary: Mapping[str, Any] = manifest.summary
    cells = summary["cells"]
    section = page.section("Cells")
    section.fact("cells", len(cells))
    section.fact("documents", sum(cell["documents"] for cell in cells.values()))
    section.fact("tokens", sum(cell["tokens"] for cell in cells.values()))
    section.fact("validation documents", summary["validation"]["documents"])
    section.fact("validation tokens", summary["validation"]["tokens"])
    places = {name: tuple(map(int, name[1:].split("q"))) for name in cells}
    grid = np.zeros(tuple(max(p[axis] for p in places.values()) + 1 for axis in (1, 0)))
    for name, (domain, bucket) in places.items():
        grid[bucket, domain] = cells[name]["tokens"]
    section.plot(
        "Tokens per cell",
        charts.heatmap(grid.tolist(), x="domain", y="quality bucket", label="tokens"),
    )
    rows = [(name, cell["documents"], cell["tokens"]) for name, cell in cells.items()]
    section.table(("cell", "documents", "tokens"), rows)
    return page
