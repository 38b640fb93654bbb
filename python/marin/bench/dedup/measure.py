"""Runs the deduplicators one by one, each in its own process, and judges what they keep."""

import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import marin
from marin.bench.dedup.peers import PEERS, THRESHOLD
from marin.bench.dedup.truth import Truth, select_documents
from marin.bench.dedup.worker import MARIN
from marin.bench.machine import describe_machine
from marin.engine import Progress
from marin.errors import MarinError

_MEGABYTE = 1_000_000
_TIMEOUT_SECONDS = 1800


@dataclass(frozen=True)
class BenchConfig:
    """`documents` in the truth set; `peer_megabytes` of text for all tools side by side, of which
    slow ones read a part; `runs` of which the median counts.
    """

    documents: int = 6000
    peer_megabytes: int = 480
    runs: int = 3


def measure(
    files: Sequence[Path], tools: Sequence[str], config: BenchConfig, *, progress: Progress
) -> dict[str, Any]:
    """Speed and memory of marin on all of `files`, also with tables of 1 GiB, on a half and a
    quarter; its stages; all tools on a part, and their quality. Returns what
    `marin bench dedup --json` prints.

    Raises:
      MarinError: a tool is unknown or not installed, or fails.
    """
    versions = {tool: _version(tool) for tool in (MARIN, *tools)}
    results: list[dict[str, Any]] = []

    def add(tool: str, metric: str, unit: str, values: Sequence[float]) -> None:
        row = {"tool": tool, "version": versions[tool], "metric": metric}
        value = statistics.median(values)
        results.append(row | {"value": value, "unit": unit, "runs": [float(v) for v in values]})

    def speed(tool: str, metric: str, inputs: Sequence[Path], *, memory: int = 0) -> None:
        text_bytes = sum(map(_text_bytes, inputs))
        done = [_run(tool, inputs, memory) for _ in range(config.runs)]
        add(tool, f"{metric}_speed", "MB/s", [text_bytes / d.seconds / _MEGABYTE for d in done])
        add(tool, f"{metric}_peak", "MB", [d.peak_bytes / _MEGABYTE for d in done])

    with TemporaryDirectory() as folder, progress.task("Measure", len(versions) + 2) as task:
        share_of = {MARIN: 1.0} | {tool: PEERS[tool].part for tool in tools}
        parts = {share: Path(folder) / f"part-{share}.parquet" for share in share_of.values()}
        for share, part in parts.items():
            _write_part(files, round(config.peer_megabytes * _MEGABYTE * share), part)
        chosen = select_documents(files, config.documents, Path(folder) / "truth.parquet")
        truth = Truth(chosen, THRESHOLD)
        task.advance(1)
        speed(MARIN, "all", files)
        speed(MARIN, "all_with_memory_1GiB", files, memory=1 << 30)
        for name, share in (("half", 2), ("quarter", 4)):
            speed(MARIN, name, files[::share])
        stages = [_stages(files) for _ in range(config.runs)]
        for name, metric in (("signature", "text_bytes"), ("verification", "candidate_bytes")):
            rates = [s[metric] / s[f"{name}_seconds"] / _MEGABYTE for s in stages]
            add(MARIN, f"{name}_stage_speed", "MB/s", rates)
        task.advance(1)
        for tool, share in share_of.items():
            speed(tool, "part", [parts[share]])
            quality = truth.judge(_run(tool, [chosen]).keep)
            add(tool, "recall", "share", [quality.recall])
            add(tool, "precision", "share", [quality.precision])
            add(tool, "orphans", "documents", [quality.orphans])
            add(tool, "missed", "pairs", [quality.missed])
            task.advance(1)
        corpus = {
            "text_bytes": sum(map(_text_bytes, files)),
            "documents": sum(pq.read_metadata(file).num_rows for file in files),
            "part_bytes": {tool: _text_bytes(parts[share]) for tool, share in share_of.items()},
            "truth_documents": truth.documents,
            "true_pairs": len(truth.pairs),
            "threshold": THRESHOLD,
        }
    return {"machine": describe_machine(), "corpus": corpus, "results": results}


@dataclass(frozen=True)
class _Done:
    seconds: float
    peak_bytes: int
    keep: np.ndarray


def _run(tool: str, files: Sequence[Path], memory: int = 0) -> _Done:
    found = _process("worker", tool, str(memory), files=files)
    return _Done(float(found["seconds"]), int(found["peak_bytes"]), found["keep"])


def _stages(files: Sequence[Path]) -> dict[str, float]:
    return {name: float(value) for name, value in _process("stages", files=files).items()}


def _process(module: str, *arguments: str, files: Sequence[Path]) -> dict[str, np.ndarray]:
    """Runs a module of this package in a process of its own and returns what it leaves."""
    with TemporaryDirectory() as folder:
        out = Path(folder) / "out.npz"
        command = [sys.executable, "-m", f"marin.bench.dedup.{module}", *arguments, str(out)]
        command += map(str, files)
        tool = " ".join([module, *arguments[:1]])
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise MarinError(
                f"{tool}: not done after {_TIMEOUT_SECONDS} s; give it less text"
            ) from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise MarinError(f"{tool}: failed on {len(files)} files: {last}")
        with np.load(out) as found:
            return dict(found)


def _version(tool: str) -> str:
    if tool == MARIN:
        return marin.__version__
    if tool not in PEERS:
        raise MarinError(f"{tool}: unknown; known are {', '.join(PEERS)}")
    distribution = PEERS[tool].distribution
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise MarinError(
            f"{tool}: {distribution} is not installed; install the extra `bench` or leave it out"
        ) from None


def _text_bytes(file: Path) -> int:
    """Bytes of text, from the file's metadata if its maker left them there."""
    left = (pq.read_metadata(file).metadata or {}).get(b"text_bytes")
    if left is not None:
        return int(left)
    table = pq.read_table(file, columns=["text"])
    return int(sum(chunk.nbytes for chunk in table["text"].chunks))


def _write_part(files: Sequence[Path], most_bytes: int, out: Path) -> None:
    """Writes whole files, the smallest first, and a piece of one until `most_bytes` of text."""
    tables, total = [], 0
    for file in sorted(files, key=lambda file: (_text_bytes(file), file)):
        table = pq.read_table(file, columns=["id", "text"])
        sizes = np.concatenate([_lengths(chunk) for chunk in table["text"].chunks])
        rows = int(np.searchsorted(np.cumsum(sizes), most_bytes - total, side="right"))
        tables.append(table.slice(0, rows))
        total += int(sizes[:rows].sum())
        if rows < table.num_rows:
            break
    table = pa.concat_tables(tables).replace_schema_metadata({"text_bytes": str(total)})
    pq.write_table(table, out, row_group_size=2000)


def _lengths(texts: pa.Array) -> np.ndarray:
    """Bytes of each text, int64."""
    lengths: np.ndarray = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    return lengths.astype(np.int64)
