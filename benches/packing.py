"""Packing: how fast lengths become plans and stores become shards, and how full the rows are.

python benches/packing.py [--peers] [--root FOLDER] [--out FILE]
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
from corpus import build_store, lengths, schedule_for
from measure import Results
from numpy.typing import NDArray

from marin._native import Packer, derive_rows
from marin.engine import read_manifest
from marin.packing import PlanConfig, PlannedRows, ShardConfig, pack, plan

CAPACITIES = (4095, 4096, 4097, 8191, 8192, 8193, 65_535, 65_536, 65_537, 262_144)
PLAN_DOCUMENTS = 1 << 20
ROW = 4096
BATCH = 32
NO_LIMIT = 2**32 - 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="measure other packers, too")
    parser.add_argument("--root", type=Path, help="keeps the corpus here; default: temporary")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    results = Results("packing")
    plans_from_lengths(results)
    with folder(options.root) as root:
        store = build_store(root)
        plans_from_a_store(results, store)
        rows_and_shards(results, store)
    if options.peers:
        import packing_peers

        packing_peers.run(results)
    results.write(options.out)


@contextmanager
def folder(root: Path | None) -> Iterator[Path]:
    if root is not None:
        root.mkdir(parents=True, exist_ok=True)
        yield root
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def plans_from_lengths(results: Results) -> None:
    """The packer alone, window by window, at row lengths around powers of two."""
    counts = lengths(PLAN_DOCUMENTS)
    window = PlanConfig().window
    for capacity in CAPACITIES:
        filled: list[tuple[int, int]] = []

        def work(capacity: int = capacity, filled: list[tuple[int, int]] = filled) -> None:
            filled[:] = [pack_all(counts, capacity, window)]

        results.rate(
            "marin", f"plan from lengths, rows of {capacity}", len(counts), "documents", work
        )
        rows, tokens = filled[0]
        results.add(
            "marin", f"padding, rows of {capacity}", 100 - 100 * tokens / rows / capacity, "%"
        )
        bound = -(-tokens // capacity)
        results.add(
            "marin", f"rows over the lower bound, {capacity}", 100 * rows / bound - 100, "%"
        )


def pack_all(counts: NDArray[np.int64], capacity: int, window: int) -> tuple[int, int]:
    packer = Packer("best-fit", NO_LIMIT, 0.0, capacity)
    documents = np.arange(len(counts))
    for begin in range(0, len(counts), window):
        part = slice(begin, begin + window)
        packer.push(documents[part], counts[part], 1 << 62)
        packer.pack(1 << 40)
    packer.pack(1 << 40)
    taken = packer.counts
    return taken["rows"], taken["packed_tokens"]


def plans_from_a_store(results: Results, store: Path) -> None:
    """The whole stage, in all cells: order of documents, lengths, packing, Arrow files."""
    for row_length in (4096, 8192, 65_536):
        schedule = schedule_for(store, row_length, batch_size=2)
        with tempfile.TemporaryDirectory() as name:
            summary = read_manifest(plan(store, schedule, Path(name))).summary
        documents = summary["documents"]

        def work(schedule: object = schedule) -> None:
            with tempfile.TemporaryDirectory() as name:
                plan(store, schedule, Path(name))  # type: ignore[arg-type]

        metric = f"plan from a store of 10 cells, rows of {row_length}"
        results.rate("marin", metric, documents, "documents", work)
        padding = 100 * summary["padding"] / (summary["padding"] + summary["tokens"])
        results.add("marin", f"padding of that plan, rows of {row_length}", padding, "%")


def rows_and_shards(results: Results, store: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        planned = plan(store, schedule_for(store, ROW), root)
        summary = read_manifest(planned).summary
        total = summary["rows"] * ROW
        tokens = np.random.default_rng(0).integers(0, 50_000, total, dtype=np.int32)
        copied = results.rate("numpy", "copy into fresh memory", total, "tokens", tokens.copy)
        source = PlannedRows(planned)
        steps = range(0, summary["rows"], BATCH)
        out, ids, positions = np.empty((3, BATCH * ROW), np.int32)
        mask = np.empty(BATCH * ROW, np.uint8)

        def assemble() -> None:
            for first in steps:
                source.assemble(first, BATCH, ROW, out)

        def derive() -> None:
            for first in steps:
                _, offsets, segments = source.assemble(first, BATCH, ROW, out)
                derive_rows(offsets, segments, ROW, ids, positions, mask)

        assembled = results.rate("marin", "assemble tokens", total, "tokens", assemble)
        results.add("marin", "assemble tokens against the copy", 100 * assembled / copied, "%")
        results.rate("marin", "assemble tokens, ids, positions, mask", total, "tokens", derive)
        for threads in (1, 2):
            shards: list[Path] = []

            def write(threads: int = threads, shards: list[Path] = shards) -> None:
                for done in shards:
                    shutil.rmtree(done)
                shards[:] = [pack(planned, root, ShardConfig(threads=threads))]

            metric = f"store to finished shards on disk, {threads} threads"
            results.rate("marin", metric, total, "tokens", write)
        table = pa.ipc.open_file(pa.memory_map(str(shards[0] / "part-00000.arrow"))).read_all()
        results.rate(
            "pyarrow",
            "plain write of one such shard, flushed",
            len(table) * ROW,
            "tokens",
            lambda: plain_write(table, root / "plain.arrow"),
        )


def plain_write(table: pa.Table, path: Path) -> None:
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with path.open("rb") as file:
        os.fsync(file.fileno())


if __name__ == "__main__":
    main()
