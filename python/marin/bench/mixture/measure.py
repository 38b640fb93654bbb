"""Measures the mixture on the published run: 200 cells and 18.75 T tokens in batches of 11,264 rows
of 4,096 tokens.

Peers mix the first phase's weights, as most of them have one vector of weights, and are judged by
the same exact targets.
"""

import statistics
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marin.bench.machine import peak_bytes
from marin.bench.mixture.peers import PEERS, Mixer
from marin.bench.results import MARIN, Results, chosen, timed
from marin.engine import Progress
from marin.mixture import Schedule, constant_batches, load

_PRESET = "harrier-2026.08.18"
_BATCH, _SEQ_LEN = 11264, 4096
_RANDOM_ROWS = 1_000_000
_ORDER_BATCHES = 1000
_SAMPLED_ROWS = 2_000_000


def measure(tools: Sequence[str], *, progress: Progress) -> dict[str, Any]:
    """Speed and exactness of marin and of `tools`. Returns what `marin bench mixture --json`
    prints.

    Raises:
      MarinError: a tool is unknown or not installed.
    """
    mixers = chosen(tools, PEERS)
    results = Results()
    spec = load(_PRESET)
    weights = [spec.phases[0].weights[cell] for cell in spec.cells]
    with progress.task("Measure", 2 + len(mixers)) as task:
        order = _plan(results)
        task.advance(1)
        _order(results, order)
        task.advance(1)
        for tool, mixer in mixers.items():
            _peer(results, tool, mixer, weights)
            task.advance(1)
    return results.report()


def _plan(results: Results) -> Schedule:
    stages = constant_batches(_BATCH * _SEQ_LEN, [(0.0, _SEQ_LEN)])
    before = peak_bytes()
    built: list[Schedule] = []

    def build() -> None:
        built[:] = [Schedule.of(load(_PRESET), stages)]
        len(built[0].order)  # builds the quotas

    seconds = timed(build)
    results.add(MARIN, "plan of the 18.75 T run", statistics.median(seconds), "s", seconds)
    grown = (peak_bytes() - before) / 1e6
    results.add(MARIN, "memory of the plan", grown, "MB", [grown])
    return built[0]


def _order(results: Results, schedule: Schedule) -> None:
    order = schedule.order
    rows = np.random.default_rng(0).integers(0, len(order), _RANDOM_ROWS)
    micros = [seconds / len(rows) * 1e6 for seconds in timed(lambda: order.locate(rows))]
    results.add(MARIN, "access to a random row", statistics.median(micros), "us/row", micros)
    count = _ORDER_BATCHES * _BATCH
    results.rate(MARIN, "order", count, "rows", lambda: order.rows(0, count))
    samples = [(f"{_SAMPLED_ROWS:,} rows", 0, _SAMPLED_ROWS, 1)]
    samples.append(("every batch boundary", 0, schedule.rows, _BATCH))
    for name, first, last, step in samples:
        distance, _, _ = order.worst(first, last, step)
        results.add(MARIN, f"farthest from a target, {name}", distance, "rows")
    results.add(MARIN, "farthest from a target, proven for every row", order.bound, "rows")
    counts = order.counts(schedule.runs[0].end_row)
    results.add(MARIN, "cells that never appear", int((counts == 0).sum()), "cells")


def _peer(results: Results, tool: str, mixer: Mixer, weights: Sequence[float]) -> None:
    rows, order = mixer(weights)
    found: list[NDArray[np.int64]] = []
    results.rate(tool, "order", rows, "rows", lambda: found.append(order()))
    worst, points, missing = judge(found[0], weights)
    within = f"{rows:,} rows"
    results.add(tool, f"farthest from a target, {within}", worst, "rows")
    results.add(tool, f"largest error of a share, {within}", points, "points")
    results.add(tool, f"cells due a row in {within} that never appear", missing, "cells")


def judge(cells: NDArray[np.int64], weights: Sequence[float]) -> tuple[float, float, int]:
    """How far consecutive rows of `cells` are from their targets.

    Returns:
      The largest distance of a cell before or after any row, in rows; the largest error of a cell's
      share of all rows, in percentage points; and how many cells that are due a row have none.
    """
    worst = points = 0.0
    missing = 0
    total = sum(map(Fraction, weights))
    for cell, weight in enumerate(weights):
        share = float(Fraction(weight) / total)
        at = np.flatnonzero(cells == cell)
        index = np.arange(len(at))
        ahead = index + 1 - share * (at + 1)
        behind = share * at - index
        last = share * len(cells) - len(at)
        worst = max(worst, last, float(ahead.max(initial=0)), float(behind.max(initial=0)))
        points = max(points, 100 * abs(last) / len(cells))
        missing += not len(at) and share * len(cells) > 1
    return worst, points, missing
