"""One deduplicator on some Parquet files in a process of its own: time, memory, what it keeps.

python -m marin.bench.dedup.worker TOOL MEMORY OUT.npz FILE...

`MEMORY` bytes are marin's alone, 0 for its default.
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow.parquet as pq

from marin.bench.dedup.peers import PEERS
from marin.bench.machine import peak_bytes

MARIN = "marin"


def run(tool: str, memory: int, files: list[Path]) -> tuple[float, np.ndarray]:
    """(seconds from Parquet to the list of kept documents, bool[documents])."""
    start = time.perf_counter()
    if tool == MARIN:
        from marin.datakit.dedup import DedupConfig, dedup_into

        with TemporaryDirectory() as folder:
            config = DedupConfig(memory=memory or None)
            out = dedup_into(files, Path(folder) / "out", config)
            seconds = time.perf_counter() - start
            parts = [
                pq.read_table(out / f.name, columns=["keep"])["keep"].to_numpy() for f in files
            ]
            return seconds, np.concatenate(parts)
    texts: list[str] = []
    for file in files:
        texts += pq.read_table(file, columns=["text"])["text"].to_pylist()
    keep = PEERS[tool].keep(texts)
    return time.perf_counter() - start, keep


def main() -> None:
    tool, memory, out, *files = sys.argv[1:]
    seconds, keep = run(tool, int(memory), [Path(file) for file in files])
    np.savez(out, seconds=seconds, peak_bytes=peak_bytes(), keep=keep)


if __name__ == "__main__":
    main()
