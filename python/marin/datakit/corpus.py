"""Joining sources: one corpus directory from the directories of many, by hard links.

Parts are numbered through all sources, and every sidecar of the sources is joined in the same way,
so the corpus and its sidecars have equal file names. Only links are made: a source that has not
changed is not read again.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from marin._native import SeenIds
from marin.datakit.parts import PART_PATTERN, part_names, read_part
from marin.engine import FileEntry, Manifest, StageDir, read_manifest, stage_directory
from marin.errors import MarinError


def corpus(sources: Sequence[Path], root: Path) -> Path:
    """Joins documents directories.

    Raises:
      MarinError: an id is in two of them.
    """
    manifests = [read_manifest(source) for source in sources]
    with stage_directory(root, "corpus", {}, _inputs(manifests)) as stage:
        if not stage.finished:
            known = _link(stage, sources, manifests)
            _check_ids(stage.path, sources, manifests)
            stage.finish(_rows(known), _corpus_summary(manifests), known)
    return stage.path


def join_sidecars(name: str, documents: Path, sidecars: Sequence[Path], root: Path) -> Path:
    """Joins sidecars, one per source of `corpus` in its order, to a sidecar of the corpus.

    Counts in the summaries are added; everything else in them must be equal.
    """
    manifests = [read_manifest(sidecar) for sidecar in sidecars]
    inputs = {"documents": read_manifest(documents).fingerprint, **_inputs(manifests)}
    with stage_directory(root, name, {}, inputs) as stage:
        if not stage.finished:
            known = _link(stage, sidecars, manifests)
            summary: dict[str, Any] = {}
            for manifest in manifests:
                for key, value in manifest.summary.items():
                    if isinstance(value, int) and key in ("documents", "tokens"):
                        summary[key] = summary.get(key, 0) + value
                    elif summary.setdefault(key, value) != value:
                        raise MarinError(
                            f"{name}: sources differ in {key}: {summary[key]}, {value}"
                        )
            stage.finish(_rows(known), summary, known)
    return stage.path


def _inputs(manifests: Sequence[Manifest]) -> dict[str, str]:
    return {f"{i:05d}": manifest.fingerprint for i, manifest in enumerate(manifests)}


def _rows(known: dict[str, FileEntry]) -> dict[str, int]:
    return {name: entry.rows for name, entry in known.items()}


def _link(
    stage: StageDir, directories: Sequence[Path], manifests: Sequence[Manifest]
) -> dict[str, FileEntry]:
    known: dict[str, FileEntry] = {}
    for directory, manifest in zip(directories, manifests, strict=True):
        entries = {entry.name: entry for entry in manifest.files}
        for part in part_names(manifest):
            name = PART_PATTERN.format(len(known))
            target = stage.path / name
            target.unlink(missing_ok=True)
            try:
                os.link(directory / part, target)
            except OSError:
                shutil.copyfile(directory / part, target)
            known[name] = entries[part]._replace(name=name)
    return known


def _check_ids(path: Path, sources: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    seen = SeenIds()
    number = 0
    for source, manifest in zip(sources, manifests, strict=True):
        for _ in part_names(manifest):
            ids = read_part(path / PART_PATTERN.format(number), ["id"])["id"].combine_chunks()
            number += 1
            repeated = pa.record_batch(seen.unique(ids))["renamed"]
            if pc.any(repeated).as_py():
                first = ids.filter(repeated)[0].as_py()
                name = manifest.summary.get("source", source.name)
                raise MarinError(
                    f"source {name!r}: document {first!r} is in another source too; give one of "
                    'them other files, or id = "" for ids that are hashes of source and content'
                )


def _corpus_summary(manifests: Sequence[Manifest]) -> dict[str, Any]:
    keys = ("source", "documents", "bytes", "repaired", "quarantined", "reasons", "renamed_ids")
    sources = [{key: m.summary[key] for key in keys if key in m.summary} for m in manifests]
    totals = {key: sum(s.get(key, 0) for s in sources) for key in keys[1:5]}
    return {**totals, "sources": sources}
