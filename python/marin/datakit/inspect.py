"""Questions to finished directories: what is in a store, where did a document go, and why."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from marin.datakit.parts import part_names, read_part
from marin.datakit.store import VALIDATION
from marin.engine import Manifest, finished_stage, read_manifest
from marin.engine.manifest import MANIFEST_NAME
from marin.errors import MarinError

# The columns of each stage that say something about one document.
_ANSWERS = {
    "corpus": ("source",),
    "dedup": ("keep", "reason", "representative", "similarity"),
    "removals": ("keep", "reason", "representative", "similarity", "evidence"),
    "domains": ("domain",),
    "quality": ("score", "bucket", "kind"),
}


def describe(target: Path) -> dict[str, Any]:
    """Tables (`columns`, `rows`) about a build's output folder or one finished directory."""
    if (target / MANIFEST_NAME).exists():
        manifest = read_manifest(target)
        tables = {"Summary": _plain(manifest.summary)}
        if manifest.stage == "store":
            tables |= _store_tables(manifest)
        return {"tables": tables}
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
    answer: dict[str, Any] = {}
    for stage in ("corpus", "documents", "ingest"):
        if stage in newest and (place := _find(*newest[stage], document)) is not None:
            break
    else:
        raise MarinError(f"{output}: no document {document!r} in its documents directories")
    part, row = place
    path = newest[stage][0]
    text = read_part(path / part, ["text", "source"]).slice(row, 1).to_pylist()[0]
    answer |= {"part": f"{path.name}/{part}", "row": row, "source": text["source"]}
    answer["text"] = (text["text"] or "")[:400]
    for name, columns in _ANSWERS.items():
        if name in newest and name != stage and (newest[name][0] / part).exists():
            table = read_part(newest[name][0] / part, ["id", *columns]).slice(row, 1)
            found = table.to_pylist()[0]
            if found.pop("id") == document:
                answer |= found
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


def _find(path: Path, manifest: Manifest, document: str) -> tuple[str, int] | None:
    for part in part_names(manifest):
        row = pc.index(pq.read_table(path / part, columns=["id"])["id"], document).as_py()
        if row >= 0:
            return part, row
    return None


def _cell(path: Path, manifest: Manifest, document: str) -> str | None:
    """The folder of the store that has the document; None: it was removed."""
    for entry in manifest.files:
        with pa.memory_map(str(path / entry.name)) as source:
            ids = pa.ipc.open_file(source).read_all()["id"]
            if pc.index(ids, document).as_py() >= 0:
                return entry.name.partition("/")[0]
    return None


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
