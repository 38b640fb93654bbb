"""Stages, revisions, and the runs of whole batches that they make."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, pairwise
from typing import Any

from marin.errors import MarinError
from marin.mixture.specification import Specification
from marin.validation import is_count, is_finite


@dataclass(frozen=True)
class Stage:
    """Rows of `seq_len` tokens in batches of `batch_size` rows, from `start`, a fraction of the
    horizon, up to the next stage."""

    start: float
    seq_len: int
    batch_size: int


@dataclass(frozen=True)
class Revision:
    """What holds from `step` on: `horizon` are the tokens of the whole run, those before `step`
    included, and the fractions of phases and stages refer to it."""

    step: int
    specification: Specification
    horizon: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not is_count(self.step):
            raise MarinError(f"a revision at step {self.step!r:.40}, expected a step from 0 on")
        if not is_count(self.horizon) or not self.horizon:
            raise MarinError(f"horizon {self.horizon!r:.40} tokens, expected more than 0")
        starts = [stage.start for stage in self.stages]
        if not all(map(is_finite, starts)):
            raise MarinError(f"stages start at {starts!r:.80}, expected fractions of the horizon")
        if not starts or starts[0] != 0 or any(a >= b for a, b in pairwise(starts)):
            raise MarinError(f"stages start at {starts}, expected increasing fractions from 0")
        if starts[-1] >= 1:
            raise MarinError(f"a stage starts at {starts[-1]} of the horizon, expected below 1")
        for stage in self.stages:
            sizes = (stage.seq_len, stage.batch_size)
            if not all(is_count(size) and 0 < size < 1 << 31 for size in sizes):
                raise MarinError(
                    f"stage at {stage.start}: rows of {stage.seq_len!r:.40} tokens in batches of "
                    f"{stage.batch_size!r:.40}, expected both to be above 0 and below 2^31"
                )

    def to_json(self) -> dict[str, Any]:
        stages = [
            {"start": s.start, "seq_len": s.seq_len, "batch_size": s.batch_size}
            for s in self.stages
        ]
        return {
            "step": self.step,
            "horizon": self.horizon,
            "stages": stages,
            "specification": self.specification.to_json(),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Revision":
        return cls(
            step=value["step"],
            specification=Specification.from_json(value["specification"]),
            horizon=value["horizon"],
            stages=tuple(Stage(**stage) for stage in value["stages"]),
        )


@dataclass(frozen=True)
class Run:
    """Whole batches of one phase, row length and batch size."""

    first_step: int
    first_row: int
    steps: int
    batch_size: int
    seq_len: int
    phase: str
    phase_index: int
    revision: int

    @property
    def rows(self) -> int:
        return self.steps * self.batch_size

    @property
    def tokens(self) -> int:
        return self.rows * self.seq_len

    @property
    def end_step(self) -> int:
        return self.first_step + self.steps

    @property
    def end_row(self) -> int:
        return self.first_row + self.rows


@dataclass(frozen=True)
class RowStage:
    """A stretch of rows of one length."""

    seq_len: int
    first_row: int
    rows: int


def constant_batches(
    tokens_per_batch: int, lengths: Sequence[tuple[float, int]]
) -> tuple[Stage, ...]:
    """Stages of `(start, seq_len)` whose batches all hold the same number of tokens.

    Raises:
      MarinError: a row length does not divide the batch.
    """
    for _, seq_len in lengths:
        if seq_len <= 0 or tokens_per_batch % seq_len:
            raise MarinError(
                f"a batch of {tokens_per_batch} tokens is no whole number of rows of {seq_len}"
            )
    return tuple(Stage(start, length, tokens_per_batch // length) for start, length in lengths)


def plan_runs(number: int, revision: Revision, step: int, row: int, tokens: int) -> tuple[Run, ...]:
    """The runs of revision `number` up to its horizon, after `tokens` tokens in `step` steps.

    Every phase and stage begins at the batch boundary nearest to its fraction, the later one if
    two are equally near; one that is shorter than half a batch may get none.

    Raises:
      MarinError: more tokens than the horizon have been consumed.
    """
    if tokens > revision.horizon:
        raise MarinError(
            f"a horizon of {revision.horizon} tokens at step {step}, where {tokens} tokens have "
            "been consumed already"
        )
    runs = []
    phases = revision.specification.phases
    budget = revision.specification.tokens
    phase_starts = [Fraction(sum(p.tokens for p in phases[:i]), budget) for i in range(len(phases))]
    stage_starts = [Fraction(str(stage.start)) for stage in revision.stages]
    marks = sorted({*phase_starts, *stage_starts, Fraction(1)})
    for start, end in pairwise(marks):
        phase_index = sum(mark <= start for mark in phase_starts) - 1
        stage = revision.stages[sum(mark <= start for mark in stage_starts) - 1]
        batch_tokens = stage.batch_size * stage.seq_len
        steps = round_half_up((end * revision.horizon - tokens) / batch_tokens)
        if steps > 0:
            run = Run(
                first_step=step,
                first_row=row,
                steps=steps,
                batch_size=stage.batch_size,
                seq_len=stage.seq_len,
                phase=phases[phase_index].name,
                phase_index=phase_index,
                revision=number,
            )
            runs.append(run)
            step, row, tokens = run.end_step, run.end_row, tokens + run.tokens
    return tuple(runs)


def cut_runs(runs: Sequence[Run], step: int) -> tuple[Run, ...]:
    """What `runs` plans before `step`."""
    kept = [run for run in runs if run.first_step < step]
    if kept and kept[-1].end_step > step:
        kept[-1] = replace(kept[-1], steps=step - kept[-1].first_step)
    return tuple(kept)


def round_half_up(value: Fraction) -> int:
    return (value + Fraction(1, 2)) // 1


def merge_stages(runs: Sequence[Run]) -> tuple[RowStage, ...]:
    groups = (list(group) for _, group in groupby(runs, lambda run: run.seq_len))
    return tuple(
        RowStage(group[0].seq_len, group[0].first_row, sum(run.rows for run in group))
        for group in groups
    )
