"""Documents of this machine: the user's own files, or what every Python installation has.

Of the user's files, Parquet, Arrow, JSON Lines and WARC files give their records (text in the
column `text`), and any other text file is one document.

Without paths, the sources are the standard library, the installed packages, the system's
documentation and all licence texts among them: thousands of real files with exact and near
duplicates. Where they exceed the byte limit, files are taken in the order of a hash of their
names, so that files of one name (a family of near duplicates) come or go together.
"""

import logging
import re
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from marin._native import SeenIds, document_ids, read_text_files, xxh3_bytes
from marin.datakit.parts import PART_PATTERN
from marin.datakit.readers import read_file
from marin.datakit.sources import Source, SourceFile, source_file
from marin.datakit.walk import FoundFile, Walk, printable
from marin.datakit.writer import DocumentWriter
from marin.engine import Progress, Silent, stage_directory
from marin.engine.manifest import fingerprint
from marin.errors import MarinError

_log = logging.getLogger("marin.datakit")

_TEXT_SUFFIXES = frozenset(
    [
        ".py",
        ".pyi",
        ".pyx",
        ".pxd",
        ".md",
        ".rst",
        ".txt",
        ".c",
        ".h",
        ".hpp",
        ".cpp",
        ".cc",
        ".cu",
        ".rs",
        ".js",
        ".ts",
        ".html",
        ".toml",
        ".cfg",
        ".ini",
        ".sh",
        ".pl",
        ".pm",
        ".yaml",
        ".yml",
    ]
)
_TEXT_NAMES = re.compile(r"(metadata|readme|news|changes|changelog|authors|copyright)$", re.I)
_LICENCE_NAMES = re.compile(r"(licen[cs]e|copying|copyright|notice)([.\-_].*)?$", re.I)
_LICENCES = "licences"
_OWN_PACKAGE = re.compile(r"marin(-.*)?$")
# Larger files among the installed ones are generated tables.
_INSTALLED_FILE_BYTES = 1 << 20
_LICENCE_SHARE = 0.125
_BATCH_BYTES = 16 << 20
_SHOWN_PROBLEMS = 5


@dataclass(frozen=True)
class LocalConfig:
    """`paths`: files and folders (empty: the documents of this machine); `max_bytes`: most text
    taken, and the memory this needs; `max_file_bytes`: larger files are left out and counted."""

    paths: tuple[Path, ...] = ()
    max_bytes: int = 48 << 20
    max_file_bytes: int = 16 << 20


@dataclass(frozen=True)
class _Candidate:
    source: str
    file: FoundFile

    def order(self) -> tuple[bool, str, str]:
        name = self.file.place.rpartition("/")[2]
        key = f"{self.source}/{self.file.place}"
        return self.source != _LICENCES, xxh3_bytes(name.encode()), xxh3_bytes(key.encode())


@dataclass
class _Chosen:
    """What was read so far; `skipped` counts files by reason."""

    table: list[pa.Table] = field(default_factory=list)
    bytes: int = 0
    repaired: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def add(self, ids: Any, texts: Any, sources: Any, places: Any) -> None:
        """Adds documents; a null id becomes a hash of source, place and text."""
        columns = {"id": ids, "text": texts, "source": sources, "path": places}
        (rows,) = pa.table(columns).combine_chunks().to_batches()
        hashed = pa.array(document_ids(rows["source"], rows["path"], rows["text"]))
        ids = pc.coalesce(rows["id"], hashed)
        self.table.append(pa.Table.from_batches([rows.set_column(0, "id", ids)]))
        self.bytes += pc.sum(pc.binary_length(rows["text"])).as_py()

    def skip(self, reason: str, count: int = 1) -> None:
        if count:
            self.skipped[reason] = self.skipped.get(reason, 0) + count


def local_documents(
    root: Path,
    config: LocalConfig,
    *,
    exclude: Sequence[Path] = (),
    progress: Progress | None = None,
) -> Path:
    """Writes the documents directory below `root`, or returns the finished one at once.

    `exclude` names folders that are never read, such as the output; `root` always is one.
    The directory is found again while every file's path, size and time of change stay the same.

    Raises:
      MarinError: a path does not exist or lies in an excluded folder, or no text is found.
    """
    progress = progress or Silent()
    excluded = [root, *exclude]
    _check_paths(config.paths, excluded)
    walk = Walk(excluded)
    with progress.task("Find files", total=None) as task:
        found = list(_candidates(config, walk, task.advance))
    found.sort(key=_Candidate.order)
    listing = [(c.source, c.file.place, c.file.size, c.file.modified_ns) for c in found]
    parameters = {key: value for key, value in asdict(config).items() if key != "paths"}
    parameters["paths"] = [printable(str(path.resolve())) for path in config.paths]
    with stage_directory(root, "documents", parameters, {"files": fingerprint(listing)}) as stage:
        if not stage.finished:
            chosen = _read(found, config, progress)
            chosen.problems = walk.problems + chosen.problems
            chosen.skip("unreadable", len(walk.problems))
            chosen.skip("not a file", walk.special)
            if not chosen.table:
                raise MarinError(_nothing_found(config, chosen))
            for problem in chosen.problems[:_SHOWN_PROBLEMS]:
                _log.warning("skipped %s", problem)
            if len(chosen.problems) > _SHOWN_PROBLEMS:
                _log.warning("skipped %d more", len(chosen.problems) - _SHOWN_PROBLEMS)
            table = pa.concat_tables(chosen.table)
            order = [(name, "ascending") for name in ("source", "path", "id", "text")]
            table = table.take(pc.sort_indices(table, order)).combine_chunks()
            unique = pa.record_batch(SeenIds().unique(table["id"].combine_chunks()))["id"]
            table = table.set_column(0, "id", unique)
            with DocumentWriter(stage.path, PART_PATTERN) as writer:
                writer.write(table)
            stage.finish(writer.rows, _summary(table, chosen, found))
    return stage.path


def _check_paths(paths: Sequence[Path], excluded: Sequence[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise MarinError(f"{printable(str(path))}: no such file or folder")
        for output in excluded:
            if path.resolve().is_relative_to(output.resolve()):
                raise MarinError(
                    f"{printable(str(path))}: an input must not be the output {output} or lie in "
                    "it; choose another output directory"
                )


def _candidates(
    config: LocalConfig, walk: Walk, found: Callable[[int], None]
) -> Iterator[_Candidate]:
    roots = _own_roots(config.paths) if config.paths else _installed_roots()
    for source, root in roots:
        for file in walk.files(root):
            if config.paths:
                found(1)
                yield _Candidate(source, file)
            elif (kind := _installed_source(source, file)) is not None:
                found(1)
                yield _Candidate(kind, file)


def _own_roots(paths: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """Each path with its name as the source; equal names are numbered."""
    used: dict[str, int] = {}
    for path in paths:
        name = printable(path.resolve().name) or "root"
        used[name] = used.get(name, 0) + 1
        yield (name if used[name] == 1 else f"{name}-{used[name]}"), path


def _installed_roots() -> Iterator[tuple[str, Path]]:
    paths = sysconfig.get_paths()
    folders = [("packages", paths[key]) for key in ("purelib", "platlib")]
    folders.append(("python", paths["stdlib"]))
    folders += [
        ("system", f"/usr/share/{name}") for name in ("common-licenses", "doc", "info", "man")
    ]
    for source, folder in folders:
        if Path(folder).is_dir():
            yield source, Path(folder)


def _installed_source(source: str, file: FoundFile) -> str | None:
    """The source of an installed file, None for one that is not text or is marin's own."""
    name = file.place.rpartition("/")[2]
    if file.size > _INSTALLED_FILE_BYTES or _OWN_PACKAGE.match(file.place.partition("/")[0]):
        return None
    if _LICENCE_NAMES.match(name) and not name.endswith((".py", ".gz")):
        return _LICENCES
    if Path(name).suffix.lower() in _TEXT_SUFFIXES or _TEXT_NAMES.match(name):
        return source
    return None


def _read(found: Sequence[_Candidate], config: LocalConfig, progress: Progress) -> _Chosen:
    """Reads candidates in order until the limit; licences may take their share of it only."""
    chosen = _Chosen()
    licences = [c for c in found if c.source == _LICENCES] if not config.paths else []
    others = found[len(licences) :]
    with progress.task("Read documents", total=config.max_bytes) as task:
        for candidates, limit in (
            (licences, int(config.max_bytes * _LICENCE_SHARE)),
            (others, config.max_bytes),
        ):
            position = 0
            while position < len(candidates) and chosen.bytes < limit:
                end, size = position, 0
                room = min(limit - chosen.bytes, _BATCH_BYTES)
                while end < len(candidates) and (size < room):
                    size += candidates[end].file.size
                    end += 1
                before = chosen.bytes
                records = _record_files(candidates[position:end]) if config.paths else {}
                plain = [c for c in candidates[position:end] if c not in records]
                _read_batch(plain, config.max_file_bytes, chosen)
                for candidate, file in records.items():
                    _read_records(candidate, file, limit, chosen)
                task.advance(chosen.bytes - before)
                position = end
    return chosen


def _record_files(candidates: Sequence[_Candidate]) -> dict[_Candidate, SourceFile]:
    """The files that hold many documents each: tables, JSON Lines, WARC; compressed ones too."""
    files = {}
    for candidate in candidates:
        found, source = candidate.file, Source(candidate.source, ())
        version = str(found.modified_ns)
        file = source_file(found.path, found.place, found.size, version, source)
        if file.format != "text" or file.codec is not None:
            files[candidate] = file
    return files


def _read_records(candidate: _Candidate, file: SourceFile, limit: int, chosen: _Chosen) -> None:
    """Adds the documents of a file of records until the limit."""
    for batch in read_file(file, Source(candidate.source, ())):
        chosen.skip("not a document", len(batch.rejected))
        texts = batch.documents["text"].combine_chunks()
        blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(texts)), 0)
        chosen.skip("empty", pc.sum(blank).as_py() or 0)
        documents = batch.documents.filter(pc.invert(blank)).combine_chunks()
        if len(documents):
            chosen.repaired += batch.repaired
            strings = pa.array([candidate.source] * len(documents), pa.string())
            places = pa.array([file.place] * len(documents), pa.string())
            chosen.add(documents["id"], documents["text"], strings, places)
        if chosen.bytes >= limit:
            return


def _read_batch(candidates: Sequence[_Candidate], max_file_bytes: int, chosen: _Chosen) -> None:
    files = [candidate.file for candidate in candidates]
    batch = pa.record_batch(read_text_files([file.path for file in files], max_file_bytes, 0))
    for row, problem in enumerate(batch["problem"].to_pylist()):
        if problem:
            known = problem in ("binary", "too large", "not a file")
            chosen.skip(problem if known else "unreadable")
            if not known:
                chosen.problems.append(f"{printable(files[row].path)}: {problem}")
    blank = pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(batch["text"])), 0)
    chosen.skip("empty", pc.sum(blank).as_py() or 0)
    table = pa.table(
        {
            "text": batch["text"],
            "source": pa.array([candidate.source for candidate in candidates], pa.string()),
            "path": pa.array([file.place for file in files], pa.string()),
        }
    ).filter(pc.fill_null(pc.invert(blank), False))
    if len(table) == 0:
        return
    chosen.repaired += pc.sum(batch["repaired"]).as_py()
    nothing = pa.nulls(len(table), pa.string())
    chosen.add(nothing, table["text"], table["source"], table["path"])


def _nothing_found(config: LocalConfig, chosen: _Chosen) -> str:
    where = ", ".join(printable(str(path)) for path in config.paths) or "this machine"
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(chosen.skipped.items()))
    return (
        f"{where}: no text documents found ({reasons or 'no files'}); name files or folders of text"
    )


def _summary(table: pa.Table, chosen: _Chosen, found: Sequence[_Candidate]) -> dict[str, Any]:
    sizes = table.select(["source"]).append_column("bytes", pc.binary_length(table["text"]))
    grouped = sizes.group_by("source").aggregate([("bytes", "count"), ("bytes", "sum")])
    return {
        "documents": len(table),
        "bytes": chosen.bytes,
        "found": {"files": len(found), "bytes": sum(c.file.size for c in found)},
        "sources": [
            {"source": row["source"], "documents": row["bytes_count"], "bytes": row["bytes_sum"]}
            for row in grouped.sort_by("source").to_pylist()
        ],
        "skipped": chosen.skipped,
        "problems": chosen.problems[:100],
        "repaired": chosen.repaired,
    }
