"""Measures streams of batches of 32 rows of 4,096 tokens, each source in a process and on a core of
its own, so that what other threads of it do counts, too.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from marin.bench.corpus import build_store, schedule_for
from marin.bench.machine import peak_bytes
from marin.bench.results import MARIN, Results, chosen, timed
from marin.bench.stream.long_run import ROW_4_BILLION, build_long_run
from marin.bench.stream.peers import BATCH, PEERS, ROW, Peer
from marin.engine import Progress
from marin.packing import pack, plan
from marin.stream import Stream

_RESUMES = 20
_LONG_SHARD = 1 << 30
"""Tokens of a shard of a run of four billion rows: 4 GiB."""


@dataclass(frozen=True)
class Reading:
    """What one process found: tokens per second of each run over the data, and its peak memory."""

    rates: list[float]
    peak_bytes: int


def measure(tools: Sequence[str], root: Path | None, *, progress: Progress) -> dict[str, Any]:
    """Speed, memory and resume of marin, and the speed of `tools`. Returns what `marin bench stream
    --json` prints.

    Args:
      root: where the corpus is kept for another time; a temporary folder by default.

    Raises:
      MarinError: a tool is unknown or not installed.
    """
    peers = chosen(tools, PEERS)
    results = Results()
    with TemporaryDirectory(dir=root) as name, progress.task("Measure", 5 + len(peers)) as task:
        store = build_store(root or Path(name))
        planned = plan(store, schedule_for(store, ROW, BATCH), Path(name))
        shards = pack(planned, Path(name))
        memory = np.random.default_rng(0).integers(0, 50_000, 1 << 26, dtype=np.int32)
        results.rate("numpy", "copy into fresh memory", len(memory), "tokens", memory.copy)
        del memory
        task.advance(1)
        sources: list[tuple[str, Callable[[], Reading]]] = [
            ("from shards, checksums on", partial(_read, shards)),
            ("from the store", partial(_read, planned)),
            ("from shards to JAX arrays", partial(_read_to_devices, shards)),
        ]
        for metric, read in sources:
            reading = _in_a_process(read)
            rate = statistics.median(reading.rates)
            full = f"tokens, ids, positions and mask, {metric}, one core"
            results.add(MARIN, full, rate, "tokens/s", reading.rates)
            results.add(
                MARIN, f"peak memory of a process, {metric}", reading.peak_bytes / 1e6, "MB"
            )
            task.advance(1)
        _resume(results, shards, Path(name))
        task.advance(1)
        for tool, (metric, peer) in peers.items():
            reading = _in_a_process(partial(_read_peer, peer, store, Path(name)))
            rate = statistics.median(reading.rates)
            results.add(tool, f"{metric}, one core", rate, "tokens/s", reading.rates)
            task.advance(1)
    return results.report()


def _in_a_process(work: Callable[[], Reading]) -> Reading:
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _stay_on_one_core) as pool:
        return pool.submit(work).result()


def _stay_on_one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _read(path: Path) -> Reading:
    def work() -> None:
        for _ in Stream(path).iterate():
            pass

    tokens = Stream(path).batches.rows * ROW
    return Reading([tokens / seconds for seconds in timed(work)], peak_bytes())


def _read_to_devices(path: Path) -> Reading:
    import jax

    from marin.stream.devices import to_devices

    mesh = jax.make_mesh((1,), ("data",), devices=jax.devices("cpu")[:1])

    def work() -> None:
        for batch in to_devices(Stream(path), mesh):
            jax.block_until_ready(batch.tokens)

    tokens = Stream(path).batches.rows * ROW
    return Reading([tokens / seconds for seconds in timed(work)], peak_bytes())


def _read_peer(peer: Peer, store: Path, root: Path) -> Reading:
    tokens, read = peer(store, root)
    return Reading([tokens / seconds for seconds in timed(read)], peak_bytes())


def _resume(results: Results, shards: Path, root: Path) -> None:
    """From a cursor to the first batch, at both ends of a long run and in the middle of a short."""
    short = Stream(shards)
    _time_resume(results, "row 0", shards, 0)
    middle = short.steps // 2
    _time_resume(results, f"row {middle * BATCH:,}", shards, middle)
    long = build_long_run(root / "long", ROW, BATCH, _LONG_SHARD)
    for row in (0, ROW_4_BILLION):
        metric = f"row {row:,} of {Stream(long).batches.rows:,}"
        _time_resume(results, metric, long, row // BATCH)


def _time_resume(results: Results, name: str, shards: Path, step: int) -> None:
    cursor = Stream(shards).cursor(step)
    runs = []
    for _ in range(_RESUMES):
        start = time.perf_counter()
        next(iter(Stream(shards, cursor=cursor).iterate(prefetch=0)))
        runs.append(1e3 * (time.perf_counter() - start))
    results.add(MARIN, f"first batch after a resume at {name}", statistics.median(runs), "ms", runs)
