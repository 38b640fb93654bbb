"""Where a run's data comes from, as the loop sees it.

A run whose plan was changed on the way (shortened, branched, another mixture) has one leg per plan:
steps before the change are read from the shards it began with, later ones from those of the revised
plan.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from marin.engine import read_manifest, verify_files
from marin.errors import MALFORMED, MarinError
from marin.mixture import Schedule
from marin.packing.shard import REPAIR
from marin.packing.store import Store
from marin.stream import Batch, Stream
from marin.train.curriculum import Segment
from marin.validation import is_count


@dataclass(frozen=True)
class Leg:
    """From `step` on rows come from `shards`, whose plan is `fingerprint`."""

    step: int
    shards: Path
    fingerprint: str

    def to_json(self) -> dict[str, Any]:
        return {"step": self.step, "shards": str(self.shards), "fingerprint": self.fingerprint}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Leg":
        """Raises `MarinError` if `value` is not what `to_json` writes."""
        try:
            leg = cls(value["step"], Path(value["shards"]), value["fingerprint"])
        except MALFORMED as error:
            raise MarinError(f"not a leg of a run: {type(error).__name__} {error}") from None
        if not is_count(leg.step) or not isinstance(leg.fingerprint, str):
            raise MarinError(f"not a leg of a run: {value!r:.200}")
        return leg


@dataclass(frozen=True)
class Source:
    """Batches by step, and the plan they follow.

    `read(step)` gives this process's rows of the batch of a step, `read_whole(step)` all of them;
    `cells` are the names that a batch's `cells` index; `segments` are those of the newest plan,
    past included; `schedule` is that plan's, as JSON; `tokenizer` is the content hash of what made
    its tokens, `store` where they lie. `targets(rows)` are the positions per cell that the mixture
    asks for in the first rows of the run, in the order of `cells`.
    """

    segments: tuple[Segment, ...]
    read: Callable[[int], Batch]
    read_whole: Callable[[int], Batch]
    cells: tuple[str, ...]
    legs: tuple[Leg, ...]
    schedule: Mapping[str, Any]
    tokenizer: str
    store: Path
    targets: Callable[[int], np.ndarray]

    def fingerprint_before(self, step: int) -> str:
        """The plan of the last rows that a run has read before `step`."""
        return max((leg for leg in self.legs if leg.step < max(step, 1)), key=_step).fingerprint


def first_leg(shards: Path) -> Leg:
    """The only leg of a fresh run."""
    return Leg(0, shards, Stream(shards).plan)


def check_files(shards: Path) -> None:
    """Checks that every file of the shards is there in its size, without reading any.

    Raises:
      MarinError: one is missing or cut.
    """
    damage = next(iter(verify_files(shards, read_manifest(shards), content=False)), None)
    if damage is not None:
        raise MarinError(f"{damage}; {REPAIR}")


def check_vocab(shards: Path, vocab: int) -> None:
    """Checks that a model of `vocab` tokens knows every token of the shards.

    Raises:
      MarinError: their tokenizer has more tokens.
    """
    summary = read_manifest(shards).summary
    size = summary.get("vocab_size")
    if size is None:  # packed before the shards' manifest said it
        with suppress(MarinError):  # the store is gone
            size = Store(Path(summary["store"])).vocab_size
    if size is not None and vocab < size:
        raise MarinError(
            f"model.vocab = {vocab}: {shards} was made with a tokenizer of {size} tokens; "
            f"set model.vocab to {size} or more"
        )


def open_source(legs: Sequence[Leg], *, process: int = 0, processes: int = 1) -> Source:
    """The data of a run, read by reader `process` of `processes`.

    Raises:
      MarinError: a directory is unfinished, not one of packed shards, or of another plan.
    """
    streams = [Stream(leg.shards) for leg in legs]
    for leg, stream in zip(legs, streams, strict=True):
        if stream.plan != leg.fingerprint:
            raise MarinError(
                f"{leg.shards}: plan {stream.plan}, but the run reads plan {leg.fingerprint} from "
                f"step {leg.step} on; restore these shards or start another run"
            )
    names = tuple(dict.fromkeys(name for stream in streams for name in stream.cells))
    numbers = [
        np.array([names.index(name) for name in stream.cells], np.uint16) for stream in streams
    ]
    starts = [leg.step for leg in legs]

    def reader(streams: Sequence[Stream]) -> Callable[[int], Batch]:
        def read(step: int) -> Batch:
            index = bisect_right(starts, step) - 1
            batch = streams[index].batch(step)
            return replace(batch, cells=numbers[index][batch.cells])

        return read

    own = streams
    if processes > 1:
        own = [Stream(leg.shards, reader=(process, processes)) for leg in legs]
    summary = read_manifest(legs[-1].shards).summary
    schedule = Schedule.from_json(summary["schedule"])
    segments = tuple(
        Segment(run.steps, run.batch_size, run.seq_len, run.phase) for run in schedule.runs
    )

    def targets(rows: int) -> np.ndarray:
        by_cell = target_tokens(schedule, rows)
        return np.array([by_cell.get(name, 0.0) for name in names])

    return Source(
        segments=segments,
        read=reader(own),
        read_whole=reader(streams),
        cells=names,
        legs=tuple(legs),
        schedule=schedule.to_json(),
        tokenizer=str(summary["tokenizer"]),
        store=Path(summary["store"]),
        targets=targets,
    )


def target_tokens(schedule: Schedule, rows: int) -> dict[str, float]:
    """Positions per cell, padding included, that the weights ask for in the first `rows` rows."""
    boundaries = [min(stage.first_row, rows) for stage in schedule.row_stages] + [rows]
    tokens = dict.fromkeys(schedule.cells, 0.0)
    for stage, (first, last) in zip(schedule.row_stages, pairwise(boundaries), strict=True):
        before, after = schedule.order.targets(first), schedule.order.targets(last)
        for cell, a, b in zip(schedule.cells, before, after, strict=True):
            tokens[cell] += float(b - a) * stage.seq_len
    return tokens


def _step(leg: Leg) -> int:
    return leg.step
