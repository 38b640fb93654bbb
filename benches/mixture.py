"""What the mixture costs, beside peers: `python benches/mixture.py [--peers] [--json FILE]`.

The run is the published one: 200 cells and 18.75 T tokens, in batches of 11,264 rows of
4,096 tokens. Peers mix the first phase's weights, as they have one vector of weights each, and are
judged by the same exact targets. A peer that is not installed is named in `skipped`; megatron-core
needs no more than `pip install --no-deps megatron-core`. Times are those of the calling thread's
processor, so that a busy machine changes them little.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marin.mixture import Schedule, constant_batches, load

PRESET = "harrier-2026.08.18"
BATCH, SEQ_LEN = 11264, 4096
RUNS = 5
RANDOM_ROWS = 1_000_000
ORDER_BATCHES = 1000
PEER_ROWS = {"grain": 50_000, "megatron-core": 2_000_000}


def timed(work: Callable[[], object]) -> list[float]:
    """Seconds of each of `RUNS` runs."""
    seconds = []
    for _ in range(RUNS):
        start = time.thread_time()
        work()
        seconds.append(time.thread_time() - start)
    return seconds


def result(tool: str, metric: str, value: float, unit: str, runs: list[float]) -> dict[str, Any]:
    version = importlib.metadata.version(tool) if tool != "marin" else _marin_version()
    return {
        "tool": tool,
        "version": version,
        "metric": metric,
        "value": value,
        "unit": unit,
        "runs": runs,
    }


def ours() -> Iterator[dict[str, Any]]:
    stages = constant_batches(BATCH * SEQ_LEN, [(0.0, SEQ_LEN)])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    built: list[Schedule] = []

    def build() -> None:
        schedule = Schedule.of(load(PRESET), stages)
        schedule.order.bound  # noqa: B018  # builds the quotas
        built.append(schedule)

    seconds = timed(build)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    yield result("marin", "plan of the 18.75 T run", min(seconds), "s", seconds)
    yield result("marin", "memory of the plan", grown, "MiB", [grown])

    order = built[0].order
    rows = np.random.default_rng(0).integers(0, len(order), RANDOM_ROWS)
    seconds = [s / RANDOM_ROWS * 1e6 for s in timed(lambda: order.locate(rows))]
    yield result("marin", "random access", min(seconds), "us/row", seconds)

    count = ORDER_BATCHES * BATCH
    rates = [count / s for s in timed(lambda: order.rows(0, count))]
    yield result("marin", "order", max(rates), "rows/s", rates)
    distance, cell, row = order.worst(0, PEER_ROWS["megatron-core"])
    name = f"farthest from its target in {PEER_ROWS['megatron-core']:,} rows ({cell} at {row:,})"
    yield result("marin", name, distance, "rows", [distance])
    yield result("marin", "proven bound for every row", order.bound, "rows", [order.bound])


def grain(weights: list[float]) -> Iterator[dict[str, Any]]:
    import grain as library

    count = PEER_ROWS["grain"]
    parts = [library.MapDataset.source(_Constant(cell, 10**9)) for cell in range(len(weights))]
    mixed = library.MapDataset.mix(parts, weights)
    cells = np.zeros(count, np.int64)

    def read() -> None:
        for row in range(count):
            cells[row] = mixed[row]

    start = time.thread_time()
    read()
    rate = count / (time.thread_time() - start)
    yield result("grain", "order", rate, "rows/s", [rate])
    yield from _distance("grain", cells, weights)


class _Constant:
    """A source whose every element is its own number."""

    def __init__(self, number: int, length: int) -> None:
        self._number, self._length = number, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return self._number


def megatron(weights: list[float]) -> Iterator[dict[str, Any]]:
    # The module is loaded by its path: importing the package would need torch.
    distribution = importlib.metadata.distribution("megatron-core")
    path = next(f for f in distribution.files or () if "helpers_cpp" in f.name)
    spec = importlib.util.spec_from_file_location("helpers_cpp", str(path.locate()))
    assert spec is not None
    assert spec.loader is not None
    helpers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helpers)
    count = PEER_ROWS["megatron-core"]
    cells, samples = np.zeros(count, np.int16), np.zeros(count, np.int64)
    exact = np.array(weights, np.float64)
    rates = [
        count / s
        for s in timed(
            lambda: helpers.build_blending_indices(
                cells, samples, exact, len(weights), count, False
            )
        )
    ]
    yield result("megatron-core", "order", max(rates), "rows/s", rates)
    yield from _distance("megatron-core", cells.astype(np.int64), weights)


def _distance(
    tool: str, cells: NDArray[np.int64], weights: list[float]
) -> Iterator[dict[str, Any]]:
    """The largest distance from a target at any row: before or after one of the cell's own."""
    worst = 0.0
    total = sum(map(Fraction, weights))
    for cell, weight in enumerate(weights):
        share = float(Fraction(weight) / total)
        at = np.flatnonzero(cells == cell)
        index = np.arange(len(at))
        ahead = index + 1 - share * (at + 1)
        behind = share * at - index
        last = share * len(cells) - len(at)
        worst = max(worst, last, float(ahead.max(initial=0)), float(behind.max(initial=0)))
    name = f"farthest from its target in {len(cells):,} rows"
    yield result(tool, name, worst, "rows", [worst])


def _marin_version() -> str:
    import marin

    return marin.__version__


def results(peers: bool) -> dict[str, Any]:
    found = list(ours())
    skipped = []
    if peers:
        spec = load(PRESET)
        weights = [spec.phases[0].weights[cell] for cell in spec.cells]
        for name, bench in (("grain", grain), ("megatron-core", megatron)):
            try:
                importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                skipped.append(name)
                continue
            found.extend(bench(weights))
    machine = f"{platform.machine()}, {platform.processor() or platform.system()}"
    return {"machine": machine, "results": found, "skipped": skipped}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    answer = results(arguments.peers)
    for entry in answer["results"]:
        print(f"{entry['tool']:14} {entry['metric']:60} {entry['value']:>14,.4g} {entry['unit']}")
    for name in answer["skipped"]:
        print(f"{name:14} is not installed", file=sys.stderr)
    if arguments.json:
        arguments.json.write_text(json.dumps(answer, indent=1) + "\n")


if __name__ == "__main__":
    main()
