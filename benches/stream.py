"""Streaming: how fast rows become batches, how soon after a resume, in how much memory.

python benches/stream.py [--peers] [--root FOLDER] [--out FILE]
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from corpus import build_store, schedule_for
from measure import Results
from packing import folder

from marin.packing import ShardConfig, pack, plan
from marin.stream import Stream

ROW = 4096
BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="measure other loaders, too")
    parser.add_argument("--root", type=Path, help="keeps the corpus here; default: temporary")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of is not None:
        read_all(options.memory_of)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
        return
    results = Results("stream")
    with folder(options.root) as root, tempfile.TemporaryDirectory(dir=root) as name:
        store = build_store(root)
        planned = plan(store, schedule_for(store, ROW, BATCH), Path(name))
        shards = pack(planned, Path(name), ShardConfig())
        stream = Stream(shards)
        total = stream.batches.rows * ROW
        memory = np.random.default_rng(0).integers(0, 50_000, total, dtype=np.int32)
        results.rate("numpy", "copy into fresh memory", total, "tokens", memory.copy)
        del memory
        # Everything on one core: what the prefetching thread does counts, too.
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        for source, metric in ((shards, "from shards, checksums on"), (planned, "from the store")):
            results.rate(
                "marin",
                f"ids, positions, mask, {metric}, one core",
                total,
                "tokens",
                lambda source=source: read_all(source),
            )
        for source, metric in ((shards, "shards"), (planned, "store")):
            command = [sys.executable, __file__, "--memory-of", str(source)]
            peak = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            results.add("marin", f"peak memory of a process, from {metric}", float(peak), "MB")
        resume(results, shards)
    if options.peers:
        import stream_peers

        stream_peers.run(results)
    results.write(options.out)


def read_all(source: Path) -> None:
    for _ in Stream(source).iterate():
        pass


def resume(results: Results, shards: Path) -> None:
    """From nothing to the first batch, in the middle of a run."""
    cursor = Stream(shards).cursor(Stream(shards).steps // 2)
    runs = []
    for _ in range(20):
        start = time.perf_counter()
        stream = Stream(shards, cursor=cursor)
        next(iter(stream.iterate()))
        runs.append(time.perf_counter() - start)
    results.add("marin", "first batch after a resume", 1e3 * statistics.median(runs), "ms", runs)


if __name__ == "__main__":
    main()
