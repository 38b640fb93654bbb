"""Where a run's data comes from, as the loop sees it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin.engine import read_manifest
from marin.mixture import Schedule
from marin.stream import Batch, Stream
from marin.train.curriculum import Segment


@dataclass(frozen=True)
class Source:
    """Batches by step, and the plan they follow.

    `read(step)` gives this process's rows of the batch of a step; `fingerprint` names the plan;
    `cells` are the names that a batch's `cells` index; `plan` is kept in the run directory.
    """

    segments: tuple[Segment, ...]
    read: Callable[[int], Batch]
    cells: tuple[str, ...]
    fingerprint: str
    plan: Mapping[str, Any]


def open_source(shards: Path, *, process: int = 0, processes: int = 1) -> Source:
    """The packed shards of a run, read by process `process` of `processes`.

    Raises:
      MarinError: the directory is unfinished or not one of packed shards.
    """
    stream = Stream(shards, reader=(process, processes))
    summary = read_manifest(shards).summary
    schedule = Schedule.from_json(summary["schedule"])
    segments = tuple(
        Segment(run.steps, run.batch_size, run.seq_len, run.phase) for run in schedule.runs
    )
    return Source(
        segments=segments,
        read=stream.batch,
        cells=stream.cells,
        fingerprint=stream.plan,
        plan={"schedule": schedule.to_json(), "tokenizer": summary["tokenizer"]},
    )
