"""Changes to a run on its way: a shorter horizon, an early-cooldown branch, another mixture.

Each makes a revised schedule, in which everything before the step stays as it was, plans and packs
it, and adds a leg to the run: steps before the change are read from the old shards, later ones from
the new. A change made before at that step or a later one is replaced. Where the end moves, the
learning rate goes in a line from where it is to 5 % of its peak at the new end.

A change is one replacement of `plan.json`. What was trained after its step is still there then, but
no longer counts: the next start drops it.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marin.engine import Progress, Silent, check_output_root, make_folder
from marin.errors import MarinError
from marin.mixture import Schedule, Specification, Stage
from marin.packing import pack, packed_as, plan
from marin.train.checkpoint import (
    checkpoint_directory,
    complete_steps,
    disk_full_as_os_error,
    read_state,
)
from marin.train.curriculum import Curriculum
from marin.train.edge import write_config
from marin.train.metrics import check_length
from marin.train.run_directory import RunDirectory
from marin.train.source import Leg, Source, first_leg, open_source

MAX_SHORTENING = 0.25  # share of the first plan that pays for hardware trouble without --force


@dataclass(frozen=True)
class Revised:
    """What an operation made: the run, where it goes on, and its new end."""

    run: Path
    step: int
    steps: int
    tokens: int


def shorten(
    path: Path,
    *,
    to: int,
    at: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Revised:
    """Ends the run in `path` at `to` tokens instead, from the checkpoint of step `at` on (default:
    its newest); what was trained after that is dropped when it goes on.

    Phase boundary and row length switches move with the horizon, being fractions of it.

    Raises:
      MarinError: the run is being trained or complete; there is no checkpoint of step `at`, or it
        is damaged; `to` is not between the tokens seen by then and the old horizon, or cuts more
        than 25 % of what the run was first planned for without `force`. A branch was first
        planned for the tokens up to the end of its cooldown.
    """
    directory = RunDirectory(path)
    config = directory.config()
    with directory.locked():
        source = open_source(directory.legs(config))
        curriculum = directory.curriculum(config, source)
        step = _step_of_change(directory, curriculum, at)
        seen = _tokens_at(curriculum, step)
        if not seen < to < curriculum.tokens:
            raise MarinError(
                f"{path}: shorten to {to} tokens, expected between {seen} (its checkpoint of step "
                f"{step}) and {curriculum.tokens} (its horizon)"
            )
        budget = directory.budget(curriculum)
        if to < (1 - MAX_SHORTENING) * budget and not force:
            raise MarinError(
                f"{path}: {to} tokens are less than 75 % of the {budget} that the run was first "
                "planned for; choose more, or give --force"
            )
        schedule = Schedule.from_json(source.schedule).revised(step, horizon=to)
        return _revise(directory, source, curriculum, step, schedule, progress)


def remix(
    path: Path,
    *,
    specification: Specification,
    at: int | None = None,
    progress: Progress | None = None,
) -> Revised:
    """Trains with another mixture, to the same end, from the checkpoint of step `at` of the run in
    `path` on (default: its newest); what was trained after that is dropped when it goes on.

    Raises:
      MarinError: the run is being trained or complete; there is no checkpoint of step `at`, or it
        is damaged; the mixture does not fit its store.
    """
    directory = RunDirectory(path)
    config = directory.config()
    with directory.locked():
        source = open_source(directory.legs(config))
        curriculum = directory.curriculum(config, source)
        step = _step_of_change(directory, curriculum, at)
        planned = Schedule.from_json(source.schedule)
        schedule = planned.revised(step, specification=specification, horizon=planned.horizon)
        return _revise(directory, source, curriculum, step, schedule, progress)


def branch(
    path: Path,
    *,
    at: int,
    cooldown: int,
    into: Path | None = None,
    seq_len: int | None = None,
    progress: Progress | None = None,
) -> Revised:
    """Starts an early cooldown of the run in `path`: a run of its own, in `into` (default: beside
    it), that goes on from the checkpoint of step `at` for `cooldown` steps of the same tokens per
    batch and ends there. The parent's files are only read.

    Raises:
      MarinError: there is no such checkpoint, it is damaged, or `into` exists or lies in a stage
        directory.
    """
    parent = RunDirectory(path)
    config = parent.config()
    target = into or path.with_name(f"{path.name}-branch-{at}")
    if target.exists():
        raise MarinError(f"{target}: exists; choose another directory for the branch with --into")
    check_output_root(target)
    source = open_source(parent.legs(config))
    curriculum = parent.curriculum(config, source)
    saved = _checkpoint(parent, at)
    segment = curriculum.at(at - 1).segment
    horizon = _tokens_at(curriculum, at) + cooldown * segment.batch_tokens
    schedule = Schedule.from_json(source.schedule)
    stages = _stages_of_branch(schedule, at, horizon, seq_len or segment.seq_len)
    revised = schedule.revised(at, horizon=horizon, stages=stages)
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    make_folder(partial)
    child = RunDirectory(partial)
    try:
        _copy_checkpoint(parent, child, at)  # before what takes long: a live parent drops it
        with parent.metrics.open("rb") as history:
            child.metrics.write_bytes(history.read(saved["metrics_bytes"]))
        write_config(replace(config, run=target), partial)
        legs = _legs(source, at, revised, progress)
        lineage = {"run": str(parent.path.resolve()), "step": at}
        result = _write_plan(child, curriculum, at, legs, lineage)
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return replace(result, run=target)


def _copy_checkpoint(parent: RunDirectory, child: RunDirectory, step: int) -> None:
    """Copies a checkpoint of a run that may be training.

    Raises:
      MarinError: the run has dropped it meanwhile.
    """
    old, new = (checkpoint_directory(run.checkpoints, step) for run in (parent, child))
    try:
        with disk_full_as_os_error(new):
            shutil.copytree(old, new)
        read_state(child.checkpoints, step)
    except (MarinError, FileNotFoundError, shutil.Error):
        if step in complete_steps(parent.checkpoints):
            raise
        raise MarinError(
            f"{old}: was dropped while it was copied; choose a newer checkpoint with --at, or have "
            "the run keep more of them (checkpoint.keep)"
        ) from None


def _revise(
    directory: RunDirectory,
    source: Source,
    curriculum: Curriculum,
    step: int,
    schedule: Schedule,
    progress: Progress | None,
) -> Revised:
    legs = _legs(source, step, schedule, progress)
    return _write_plan(directory, curriculum, step, legs)


def _legs(
    source: Source, step: int, schedule: Schedule, progress: Progress | None
) -> Sequence[Leg]:
    """Plans and packs a schedule that was revised at `step`, beside the shards of the run's newest
    leg and by their settings. The legs before `step` stay: the new plan keeps the rows of the last
    of them, and the documents that those did not use follow."""
    kept = [leg for leg in source.legs if leg.step < step]
    after = kept[-1].shards if kept else None
    newest = source.legs[-1].shards.resolve()
    root = newest.parent
    rows, files = packed_as(newest)
    shown = progress or Silent()
    planned = plan(source.store, schedule, root, rows, after=after, progress=shown)
    shards = pack(planned, root, files, progress=shown)
    return [*kept, replace(first_leg(shards), step=step)]


def _write_plan(
    directory: RunDirectory,
    curriculum: Curriculum,
    step: int,
    legs: Sequence[Leg],
    parent: Mapping[str, Any] | None = None,
) -> Revised:
    """Makes the run read from `legs`, of which the last begins at `step`."""
    source = open_source(legs)
    revised = curriculum.revised(step, source.segments)
    directory.write_plan(revised, source, parent=parent, undone_after=step)
    return Revised(directory.path, step, revised.steps, revised.tokens)


def _stages_of_branch(schedule: Schedule, at: int, horizon: int, seq_len: int) -> Sequence[Stage]:
    """The past of a schedule and then rows of `seq_len`, as stages of the branch's horizon."""
    run = schedule.run_at(at - 1)
    tokens = run.batch_size * run.seq_len
    if tokens % seq_len:
        raise MarinError(
            f"--seq-len {seq_len}: batches of {tokens} tokens are no whole number of such rows"
        )
    return (Stage(0.0, seq_len, tokens // seq_len),)


def _step_of_change(directory: RunDirectory, curriculum: Curriculum, at: int | None) -> int:
    """`at`, or the newest checkpoint's step, which is not the last one of the run: 0 without
    any."""
    if at is not None:
        _checkpoint(directory, at)  # later ones are given up for it
    steps = directory.checkpoint_steps()
    step = at if at is not None else steps[-1] if steps else 0
    if step == curriculum.steps:
        raise MarinError(
            f"{directory.path}: complete after {step} steps and {curriculum.tokens} tokens, so "
            "nothing is left to change; go back to an older checkpoint with --at, or start from "
            "one with marin train branch"
        )
    return step


def _checkpoint(directory: RunDirectory, at: int) -> dict[str, Any]:
    """What the checkpoint of step `at` says.

    Raises:
      MarinError: there is none, it is damaged, or the metrics up to it are not there.
    """
    steps = directory.checkpoint_steps()
    if at not in steps:
        raise MarinError(
            f"{directory.path}: no complete checkpoint of step {at}; there are {steps}"
        )
    saved = read_state(directory.checkpoints, at)
    check_length(directory.metrics, saved["metrics_bytes"])
    return saved


def _tokens_at(curriculum: Curriculum, step: int) -> int:
    return curriculum.at(step).tokens if step < curriculum.steps else curriculum.tokens
