"""Questions to finished directories: what is in a store, where did a document go, and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from marin.datakit.decontaminate import CONTAMINATED
from marin.datakit.parts import part_names
from marin.datakit.store import VALIDATION
from marin.engine import Manifest, finished_stage, read_manifest
from marin.engine.manifest import MANIFEST_NAME
from marin.errors import MarinError

# The columns of each stage that say something about one document.
_ANSWERS = {
    "corpus": ("source",),
    "contamination": ("evidence",),
    "dedup": ("keep", "reason", "representative", "similarity"),
    "domains": ("domain",),
    "quality": ("score", "bucket", "kind"),
}


_TEXT = 400
"""Characters of a document's text that an answer shows."""


def describe(target: Path) -> dict[str, Any]:
    """Tables (`columns`, `rows`) about a build's output folder or one finished directory."""
    if (target / MANIFEST_NAME).exists():
        manifest = read_manifest(target)
        if manifest.stage == "store":
            return {"tables": {"Summary": _plain(_totals(manifest)), **_store_tables(manifest)}}
        return {"tables": {"Summary": _plain(manifest.summary)}}
    rows = [
        [path.name, manifest.rows, sum(f.bytes for f in manifest.files)]
        for path, manifest in _stages(target)
    ]
    tables = {"Finished stages": {"columns": ["directory", "rows", "bytes"], "rows": rows}}
    stores = [manifest for _, manifest in _stages(target) if manifest.stage == "store"]
    for manifest in stores[-1:]:
        tables |= _store_tables(manifest)
    return {"tables": tables}


def trace(output: Path, document: str) -> dict[str, Any]:
    """Everything that the newest stages below `output` say about one document.

    Raises:
      MarinError: no documents directory there has it.
    """
    newest = {manifest.stage: (path, manifest) for path, manifest in _stages(output)}
    for stage in ("corpus", "documents", "ingest"):
        if stage in newest and (found := _find(*newest[stage], document)) is not None:
            break
    else:
        raise MarinError(f"{output}: no document {document!r} in its documents directories")
    part = found["part"]
    answer: dict[str, Any] = {
        "part": f"{newest[stage][0].name}/{part}",
        "row": found["row"],
        "source": found["source"],
        "text": (found["text"] or "")[:_TEXT],
    }
    for name, columns in _ANSWERS.items():
        if name in newest and name != stage and (newest[name][0] / part).exists():
            sidecar = pl.scan_parquet(newest[name][0] / part).filter(pl.col("id") == document)
            for row in sidecar.select(columns).head(1).collect().to_dicts():
                answer |= row
    # The removals may be those of an earlier build, which had other evaluation sets.
    if answer.get("reason", CONTAMINATED) != CONTAMINATED:
        answer.pop("evidence", None)
    if "store" in newest:
        answer["cell"] = _cell(*newest["store"], document)
    return answer


def _stages(output: Path) -> Iterator[tuple[Path, Manifest]]:
    """The finished directories below `output`, oldest first."""
    found = [path.parent for path in output.glob(f"*/{MANIFEST_NAME}")]
    if not found:
        raise MarinError(f"{output}: no finished stage there; name a build's output folder")
    for path in sorted(found, key=lambda p: ((p / MANIFEST_NAME).stat().st_mtime_ns, p.name)):
        manifest = finished_stage(path)
        if manifest is not None:
            yield path, manifest


def _find(path: Path, manifest: Manifest, document: str) -> dict[str, Any] | None:
    """Part, row in the part, source and text of a document; the text of no other is decoded."""
    parts = [
        pl.scan_parquet(path / part, row_index_name="row").select(
            "row", "id", "source", "text", part=pl.lit(part)
        )
        for part in part_names(manifest)
    ]
    if not parts:
        return None
    rows = pl.concat(parts).filter(pl.col("id") == document).head(1).collect().to_dicts()
    return rows[0] if rows else None


def _cell(path: Path, manifest: Manifest, document: str) -> str | None:
    """The folder of the store that has the document; None: it was removed."""
    files = [
        pl.scan_ipc(path / entry.name).select("id", cell=pl.lit(entry.name.partition("/")[0]))
        for entry in manifest.files
    ]
    if not files:
        return None
    cells = pl.concat(files).filter(pl.col("id") == document).head(1).collect()
    return None if cells.is_empty() else str(cells["cell"][0])


def _totals(manifest: Manifest) -> dict[str, Any]:
    """What a store holds in all."""
    cells, held_out = manifest.summary["cells"].values(), manifest.summary["validation"]
    return {
        "cells": len(cells),
        "documents": sum(cell["documents"] for cell in cells),
        "tokens": sum(cell["tokens"] for cell in cells),
        "held-out documents": held_out["documents"],
        "held-out tokens": held_out["tokens"],
        "vocabulary": manifest.summary["tokenizer"].get("vocab_size", "not stated"),
    }


def _store_tables(manifest: Manifest) -> dict[str, Any]:
    summary = manifest.summary
    cells = [[name, cell["documents"], cell["tokens"]] for name, cell in summary["cells"].items()]
    held_out = summary["validation"]
    cells.append([VALIDATION, held_out["documents"], held_out["tokens"]])
    domains = [
        [f"c{index:02d}", domain["name"], domain["documents"]]
        for index, domain in enumerate(summary["domains"])
    ]
    return {
        "Domains": {"columns": ["cell", "name", "documents"], "rows": domains},
        "Cells": {"columns": ["cell", "documents", "tokens"], "rows": cells},
    }


def _plain(summary: Any) -> dict[str, Any]:
    rows = [[key, value] for key, value in summary.items() if isinstance(value, int | float | str)]
    return {"columns": ["", ""], "rows": rows}
