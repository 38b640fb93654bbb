"""What one core delivers: mixing, planning, packing and streaming at one row length.

Measured in a process of its own on one core, so that the threads of a stage count as well.
"""

import multiprocessing
import os
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from marin.bench.corpus import build_store, schedule_for
from marin.bench.results import timed
from marin.packing import ShardConfig, pack, plan
from marin.stream import Stream

_BATCH_TOKENS = 1 << 17
_MIXED_ROWS = 1 << 20


@dataclass(frozen=True)
class DataRates:
    """Tokens per second of one core, padding included."""

    mix: float
    """Places of rows in the order of the run."""
    plan: float
    """Lengths of a store to the documents of each row."""
    pack: float
    """A plan to finished shards on disk."""
    stream_store: float
    """A plan to batches with segment ids, positions and mask, straight from the store."""
    stream_shards: float
    """Shards to the same batches, checksums verified."""

    @property
    def from_store(self) -> float:
        """End to end without shards: planned, then streamed from the store."""
        return 1 / (1 / self.plan + 1 / self.stream_store)

    def as_json(self) -> dict[str, float]:
        return {**asdict(self), "from_store": self.from_store}


def data_rates(root: Path, row_length: int, documents: int, seconds: float) -> DataRates:
    """Measures on a store below `root`, which is made once, each rate for at least `seconds`."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, _stay_on_one_core) as pool:
        return pool.submit(_measure, root, row_length, documents, seconds).result()


def _stay_on_one_core() -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _measure(root: Path, row_length: int, documents: int, seconds: float) -> DataRates:
    store = build_store(root, documents)
    schedule = schedule_for(store, row_length, max(1, _BATCH_TOKENS // row_length))
    total = schedule.tokens
    mixed = min(_MIXED_ROWS, schedule.rows)
    mix = _rate(mixed * row_length, lambda: schedule.order.rows(0, mixed), seconds)
    with TemporaryDirectory(dir=root) as name:
        places = iter(range(1 << 20))
        plans: list[Path] = []

        def make_plan() -> None:
            folder = Path(name) / str(next(places))
            folder.mkdir()
            plans.append(plan(store, schedule, folder))

        def make_shards() -> None:
            folder = Path(name) / str(next(places))
            folder.mkdir()
            shards.append(pack(plans[0], folder, ShardConfig(threads=1)))

        shards: list[Path] = []
        return DataRates(
            mix=mix,
            plan=_rate(total, make_plan, seconds),
            pack=_once(total, make_shards),
            stream_store=_rate(total, lambda: _read(plans[0]), seconds),
            stream_shards=_rate(total, lambda: _read(shards[0]), seconds),
        )


def _rate(tokens: int, work: Callable[[], object], seconds: float) -> float:
    return tokens / statistics.median(timed(work, seconds=seconds))


def _once(tokens: int, work: Callable[[], object]) -> float:
    """One run: shards are as large as the store."""
    return tokens / timed(work, runs=1, seconds=0.0)[0]


def _read(path: Path) -> None:
    for _ in Stream(path).iterate():
        pass
