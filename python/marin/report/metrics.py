"""The records of a run as a report draws them: all of a short run, some of a long one.

The metrics of a long run are gigabytes, and a plot is a thousand pixels wide.
"""

import logging
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from marin.engine import ends_cut, json_lines, whole_lines
from marin.errors import MarinError

_DRAWN = 2_000  # steps
_ALWAYS = ("alarms", "eval/loss_micro", "unigram_loss")
# What a record that is left out adds to the next that is kept, so that sums stay those of the run.
_SUMMED = (
    "assigned", "dropped_sender", "dropped_receiver",
    "time/checkpoint", "time/compile", "time/evaluation",
)  # fmt: skip
_LARGE = ("expert_load", "cells", "cells_target")  # whole only in the last record that has it

_LOG = logging.getLogger(__name__)


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The records of a run in the order of steps, at most about 2,000: of a longer run every n-th,
    the last one, and those with an evaluation, an alarm, or a switch of row length or phase.

    A record also counts the assignments, drops and seconds (`_SUMMED`) of those left out before it.
    Loads of experts are means over the layers, and tokens per cell are left out, but for the last
    record that has them. A half-written last line is left out with a warning.

    Raises:
      MarinError: there is no `metrics.jsonl`, it holds no step, or a complete line is no JSON
        object.
    """
    path = run / "metrics.jsonl"
    count, last = _survey(path)
    if not count:
        raise MarinError(f"{path}: holds no step yet, so there is nothing to report")
    if ends_cut(path):
        _LOG.warning("%s: line %d is cut and left out", path, count + 1)
    stride = -(-count // _DRAWN)
    whole = {count - 1, *last.values()}
    kept: list[dict[str, Any]] = []
    left_out: dict[str, float] = {}
    before: Mapping[str, Any] = {}
    for index, record in enumerate(islice(json_lines(path), count)):
        switches = any(record.get(key) != before.get(key) for key in ("seq_len", "phase"))
        special = index in whole or any(key in record for key in _ALWAYS) or switches
        before = record
        if index % stride and not special:
            for key in _SUMMED:
                left_out[key] = left_out.get(key, 0) + record.get(key, 0)
            continue
        for key, value in left_out.items():
            record[key] = record.get(key, 0) + value
        left_out = {}
        kept.append(_small(record, {key for key in _LARGE if index != last.get(key)}))
    return kept


def _survey(path: Path) -> tuple[int, dict[str, int]]:
    """How many lines there are, and which is the last with each large value."""
    count = 0
    last: dict[str, int] = {}
    needles = {key: f'"{key}":'.encode() for key in _LARGE}
    for index, line in enumerate(whole_lines(path)):
        count += 1
        last |= {key: index for key, needle in needles.items() if needle in line}
    return count, last


def _small(record: dict[str, Any], large: set[str]) -> dict[str, Any]:
    """The record without what is `large` in it; of the loads their mean stays, as of one layer."""
    kept = {key: value for key, value in record.items() if key not in large}
    if "expert_load" in large and "expert_load" in record:
        layers = record["expert_load"]
        kept["expert_load"] = [[sum(share) / len(layers) for share in zip(*layers, strict=True)]]
    return kept
