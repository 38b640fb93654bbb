"""Measures packing on a corpus of 128 M tokens, and planning on lengths alone."""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from marin._native import Packer, derive_rows
from marin.bench.corpus import build_store, lengths, schedule_for
from marin.bench.packing.large import build_lengths
from marin.bench.packing.peers import PEERS
from marin.bench.results import MARIN, Results, chosen
from marin.engine import Progress, read_manifest
from marin.packing import PlanConfig, PlannedRows, ShardConfig, pack, plan

_ROW_LENGTHS = (4095, 4096, 4097, 8191, 8192, 8193, 65_535, 65_536, 65_537, 262_144)
_PLAN_DOCUMENTS = 1 << 20
_ROW = 4096
_BATCH = 32
_NO_LIMIT = 2**32 - 1
_ROUNDS = 5


def measure(tools: Sequence[str], root: Path | None, *, progress: Progress) -> dict[str, Any]:
    """Speed and padding of marin and of `tools`. Returns what `marin bench pack --json` prints.

    Args:
      root: where the corpus is kept for another time; a temporary folder by default.

    Raises:
      MarinError: a tool is unknown or not installed.
    """
    peers = chosen(tools, PEERS)
    results = Results()
    with TemporaryDirectory(dir=root) as name, progress.task("Measure", 4 + len(peers)) as task:
        _plans_from_lengths(results)
        task.advance(1)
        _plans_from_a_store(results, build_lengths(root or Path(name)))
        task.advance(1)
        store = build_store(root or Path(name))
        planned = plan(store, schedule_for(store, _ROW), Path(name))
        _rows(results, planned)
        task.advance(1)
        _shards(results, planned, Path(name))
        task.advance(1)
        for peer in peers.values():
            peer(results)
            task.advance(1)
    return results.report()


def _plans_from_lengths(results: Results) -> None:
    """The packer alone, window by window, at row lengths around powers of two."""
    counts = lengths(_PLAN_DOCUMENTS)
    for row_length in _ROW_LENGTHS:
        filled: list[tuple[int, int]] = []

        def work(row_length: int = row_length, filled: list[tuple[int, int]] = filled) -> None:
            filled[:] = [_pack_all(counts, row_length)]

        metric = f"plan from lengths, rows of {row_length}"
        results.rate(MARIN, metric, len(counts), "documents", work)
        rows, tokens = filled[0]
        padding = 100 - 100 * tokens / (rows * row_length)
        results.add(MARIN, f"padding, rows of {row_length}", padding, "%")
        over = 100 * rows / -(-tokens // row_length) - 100
        results.add(MARIN, f"rows over the lower bound, rows of {row_length}", over, "%")
        lost = int(counts.sum()) - tokens
        results.add(MARIN, f"tokens lost, rows of {row_length}", lost, "tokens")


def _pack_all(counts: NDArray[np.int64], row_length: int) -> tuple[int, int]:
    window = PlanConfig().window
    packer = Packer("best-fit", _NO_LIMIT, 0.0, row_length)
    documents = np.arange(len(counts))
    for begin in range(0, len(counts), window):
        part = slice(begin, begin + window)
        packer.push(documents[part], counts[part], 1 << 62)
        packer.pack(1 << 40)
    while packer.waiting:
        packer.pack(1 << 40)
    taken = packer.counts
    return taken["rows"], taken["packed_tokens"]


def _plans_from_a_store(results: Results, store: Path) -> None:
    """The whole stage, in all cells: order of documents, lengths, packing, Arrow files."""
    os.sync()  # the corpus was just written
    for row_length in (4096, 8192, 65_536):
        schedule = schedule_for(store, row_length, batch_size=2)
        documents = 0
        padding = 0.0

        def work(schedule: Any, root: Path) -> None:
            nonlocal documents, padding
            summary = read_manifest(
                plan(store, schedule, root / str(len(os.listdir(root))))
            ).summary
            documents = summary["documents"]
            padding = 100 * summary["padding"] / (summary["padding"] + summary["tokens"])

        with TemporaryDirectory(dir=store.parent) as name:
            again = partial(work, schedule, Path(name))
            again()  # says how many documents
            metric = f"plan from a store of {documents:,} documents, rows of {row_length}"
            results.rate(MARIN, metric, documents, "documents", again)
        results.add(MARIN, f"padding of that plan, rows of {row_length}", padding, "%")


def _rows(results: Results, planned: Path) -> None:
    rows = read_manifest(planned).summary["rows"]
    total = rows * _ROW
    tokens = np.random.default_rng(0).integers(0, 50_000, total, dtype=np.int32)
    copied = results.rate("numpy", "copy into fresh memory", total, "tokens", tokens.copy)
    source = PlannedRows(planned)
    steps = [(first, min(_BATCH, rows - first)) for first in range(0, rows, _BATCH)]
    out, ids, positions = np.empty((3, _BATCH * _ROW), np.int32)
    mask = np.empty(_BATCH * _ROW, np.uint8)

    def assemble() -> None:
        for first, count in steps:
            source.assemble(first, count, _ROW, out[: count * _ROW])

    def derive() -> None:
        for first, count in steps:
            wide = slice(count * _ROW)
            _, offsets, segments = source.assemble(first, count, _ROW, out[wide])
            derive_rows(offsets, segments, _ROW, ids[wide], positions[wide], mask[wide])

    assembled = results.rate(MARIN, "assemble tokens", total, "tokens", assemble)
    results.add(MARIN, "assemble tokens, against the copy", 100 * assembled / copied, "%")
    results.rate(MARIN, "assemble tokens, ids, positions and mask", total, "tokens", derive)


def _shards(results: Results, planned: Path, root: Path) -> None:
    """Store to shards, and a plain write of the same, in turns: a disk has its moods."""
    total = read_manifest(planned).summary["rows"] * _ROW
    files = sorted(pack(planned, root).glob("part-*.arrow"))
    tables = [pa.ipc.open_file(pa.memory_map(str(file))).read_all() for file in files]
    ways: dict[tuple[str, str], Callable[[Path], object]] = {
        (MARIN, f"store to finished shards on disk, {threads} threads"): partial(
            pack, planned, config=ShardConfig(threads=threads)
        )
        for threads in (1, 2)
    }
    ways["pyarrow", "plain write of the same shards, flushed"] = partial(_plain_write, tables)
    rates: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for _ in range(_ROUNDS):
        for way, work in ways.items():
            with TemporaryDirectory(dir=root) as name:
                os.sync()
                start = time.perf_counter()
                work(Path(name))
                rates[way].append(total / (time.perf_counter() - start))
    for (tool, metric), found in rates.items():
        results.add(tool, metric, statistics.median(found), "tokens/s", found)


def _plain_write(tables: list[pa.Table], root: Path) -> None:
    for number, table in enumerate(tables):
        path = root / f"{number}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        with path.open("rb") as file:
            os.fsync(file.fileno())
