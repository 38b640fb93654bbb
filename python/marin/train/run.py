"""A run from shards and a configuration to its end, however often it is stopped on the way.

It goes on from its newest complete checkpoint and ends with the same bits as a run that was never
stopped.
"""

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from marin.engine import Progress, Silent
from marin.errors import MarinError
from marin.model import make_mesh
from marin.model.count import train_flops_per_token
from marin.train.checkpoint import Checkpoints, checkpoint_directory, read_state
from marin.train.compiler import compile_ahead, compiled_in
from marin.train.config import TrainConfig
from marin.train.curriculum import Curriculum
from marin.train.data import feed
from marin.train.devices import ensure_devices, peak_flops
from marin.train.edge import write_config
from marin.train.evaluation import evaluation_of, evaluation_shape
from marin.train.loop import Loop
from marin.train.metrics import MetricsLog, check_length, last_records, stream_metrics
from marin.train.processes import ALONE, Processes
from marin.train.run_directory import RunDirectory
from marin.train.source import Source, check_files, check_vocab, first_leg, open_source
from marin.train.state import fill_named, named_arrays, take_apart
from marin.train.telemetry import Cost, cursor_of
from marin.train.unigram import unigram_loss
from marin.train.wandb_mirror import WandbMirror, catch_up, mirror_settings
from marin.train.watch import RECALLED, Watch

_TAIL = 0.05  # share of the steps whose mean loss is reported beside the last one

logger = logging.getLogger("marin.train")


@dataclass(frozen=True)
class RunResult:
    """Where a run stands. Losses are nats per token; `tail_loss` is the mean of the last 5 %."""

    run: Path
    steps: int
    tokens: int
    complete: bool
    final_loss: float
    tail_loss: float
    unigram_loss: float
    metrics: Path
    checkpoint: Path


def run(
    config: TrainConfig,
    *,
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> RunResult:
    """Trains on the shards of `config`; its run directory keeps everything.

    A directory that holds a run of the same configuration is gone on with, or returned as it is
    when complete. Every one of the run's `processes` calls this.

    Raises:
      MarinError: the directory holds another run or is in use; shards, vocabulary, mesh or batch do
        not fit; the newest checkpoint is damaged.
    """
    first_leg(config.shards)  # unreadable or unfit shards leave no run directory behind
    check_vocab(config.shards, config.model.vocab)
    directory = RunDirectory(config.run)
    return _held(config, directory, None, progress, processes)


def resume(
    path: Path,
    *,
    at: int | None = None,
    settings: Sequence[str] = (),
    progress: Progress | None = None,
    processes: Processes = ALONE,
) -> RunResult:
    """Goes on with the run in `path` from its newest checkpoint, or from the one of step `at`; what
    came after that one is dropped.

    `settings` (`key=value`) change what may change on the way: the mesh, the transport, what is
    logged, watched and kept.
    """
    directory = RunDirectory(path)
    config = directory.config(settings)
    return _held(config, directory, at, progress, processes)


def _held(
    config: TrainConfig,
    directory: RunDirectory,
    at: int | None,
    progress: Progress | None,
    processes: Processes,
) -> RunResult:
    """Trains while the first process holds the directory."""
    check_files(directory.legs(config)[-1].shards)
    if processes.count > 1:
        ensure_devices(config.mesh.devices, processes.count)  # processes talk over devices
    with ExitStack() as stack:
        processes.from_first(lambda: directory.open(config, stack))
        legs = directory.legs(config)
        index, count = processes.reader(config.mesh)
        source = open_source(legs, process=index, processes=count)
        shown = progress if progress is not None and processes.is_first else Silent()
        return train(config, source, directory, at=at, progress=shown, processes=processes)


def train(
    config: TrainConfig,
    source: Source,
    directory: RunDirectory,
    *,
    at: int | None = None,
    progress: Progress,
    processes: Processes = ALONE,
) -> RunResult:
    """The steps of a run that are left; the directory is locked and this configuration's."""
    if processes.count > 1:
        ensure_devices(config.mesh.devices, processes.count)

    def prepare() -> tuple[int, dict[str, Any]]:
        curriculum = directory.curriculum(config, source)
        step, saved = _saved_state(directory, at, curriculum, source)
        check_length(directory.metrics, saved.get("metrics_bytes", 0))
        if step < curriculum.steps:
            source.read_whole(step)  # damage shows now, not when the step has compiled
        return step, saved

    start, saved = processes.from_first(prepare)
    logged = saved.get("metrics_bytes", 0)
    curriculum = directory.curriculum(config, source)
    asked = range(start, min(curriculum.steps, config.stop_at or curriculum.steps))
    if not asked:
        if processes.is_first and config.log.wandb:
            catch_up(directory.path, mirror_settings(config, directory, start, logged))
        return _result(directory, curriculum, processes)
    if start:
        found = checkpoint_directory(directory.checkpoints, start)
        progress.note(f"Train: going on from step {start} of {curriculum.steps} ({found})")
    steps, obstacle = _steps_of_mesh(config, curriculum, asked)
    if config.evaluation.times:
        evaluation_shape(config, curriculum)  # refused now, not when the step has compiled
    if obstacle is not None and processes.is_first:
        logger.warning("%s: %s", directory.path, obstacle)
    ensure_devices(config.mesh.devices, processes.count)
    mesh = make_mesh(**vars(config.mesh))
    _, readers = processes.reader(config.mesh)
    watch = Watch(config.watch, processes, steps=curriculum.steps)
    trainee = take_apart(config.model, mesh)
    with ExitStack() as stack:
        stack.enter_context(compiled_in(directory.path / "compiled"))
        compiler = stack.enter_context(
            compile_ahead(trainee, curriculum, steps, len(source.cells), config.microbatches)
        )
        length = curriculum.at(start).segment.seq_len
        progress.note(f"Train: compiling the step for rows of {length} tokens")
        checkpoints = Checkpoints(directory.checkpoints, config.checkpoint.keep, processes)
        stack.callback(checkpoints.close)
        evaluator = evaluation_of(config, source, trainee, curriculum, compiler, processes)
        if start:
            arrays = checkpoints.restore(start, named_arrays(trainee.layout))
            state = fill_named(trainee.layout, arrays)
        else:
            state = trainee.initial(config.seed)
        # What could be refused has been looked at: only now does the run change.
        checkpoints.sweep(after=start)
        watch.recall(last_records(directory.metrics, logged, RECALLED, watch.seldom))
        log, mirror = None, None
        if processes.is_first:
            directory.undone_are_gone()
            write_config(config, directory.path)
            log = MetricsLog(directory.metrics, logged)
            stack.callback(log.close)
            if config.log.wandb:
                settings = mirror_settings(config, directory, start, logged)
                mirror = WandbMirror(directory.path, settings)
                stack.callback(mirror.close)
        batches = stack.enter_context(feed(source.read, steps, mesh, readers))
        if "unigram_loss" not in saved:
            # While the step compiles.
            saved["unigram_loss"] = processes.from_first(
                lambda: unigram_loss(source.read_whole, curriculum, config.model.vocab)
            )
        cost = _cost(config, curriculum, mesh)
        loop = Loop(
            config, source, curriculum, checkpoints, evaluator, cost, log, mirror, saved, watch
        )
        task = stack.enter_context(progress.task("Train", total=curriculum.steps))
        task.advance(start)
        loop.go(steps, state, batches, compiler, task.advance)
    processes.wait("the run's end")
    if steps != asked and processes.is_first:
        logger.warning("%s: stopped before step %d: %s", directory.path, steps.stop, obstacle)
    return _result(directory, curriculum, processes)


def _cost(config: TrainConfig, curriculum: Curriculum, mesh: Mesh) -> Cost:
    lengths = {segment.seq_len for segment in curriculum.segments}
    peak = config.log.peak_flops or peak_flops(mesh.devices.flat[0])
    return Cost(
        {length: train_flops_per_token(config.model, length) for length in lengths},
        None if peak is None else peak * mesh.size,
    )


def _saved_state(
    directory: RunDirectory, at: int | None, curriculum: Curriculum, source: Source
) -> tuple[int, dict[str, Any]]:
    """The step to go on from and what its checkpoint says; a run without checkpoints starts at 0.

    Raises:
      MarinError: there is no complete checkpoint of step `at`, it is damaged, or its cursor is not
        on the plan of this run.
    """
    root, steps = directory.checkpoints, directory.checkpoint_steps()
    if at is not None and at not in steps:
        raise MarinError(f"{root}: no complete checkpoint of step {at}; there are {steps}")
    if not steps:
        return 0, {}
    step = steps[-1] if at is None else at
    saved = read_state(root, step)
    expected = cursor_of(curriculum, source, step)
    if saved["cursor"] != expected:
        raise MarinError(
            f"{checkpoint_directory(root, step)}: cursor {saved['cursor']} is not on the plan of "
            f"the run, which says {expected}"
        )
    return step, saved


def _steps_of_mesh(
    config: TrainConfig, curriculum: Curriculum, steps: range
) -> tuple[range, str | None]:
    """Those of `steps` that come before the first batch of the run that this mesh cannot cut, and
    what is to be done there; None if it can cut all that are left.

    Raises:
      MarinError: it cannot cut the first batch of `steps`.
    """
    first = 0
    for count, rows, seq_len in curriculum.shapes_before(curriculum.steps):
        if first + count > steps.start and rows % config.parts:
            mesh = config.mesh
            cannot = (
                f"batches of {rows} rows of {seq_len} cannot be cut into {config.parts} equal "
                f"parts (mesh {mesh.replica} x {mesh.data} x {mesh.expert}, "
                f"{config.microbatches} microbatches)"
            )
            if first <= steps.start:
                raise MarinError(f"{cannot}; change the mesh, the microbatches or the batch size")
            return range(steps.start, min(steps.stop, first)), (
                f"from step {first} on {cannot}; the run stops there with a checkpoint, go on with "
                f"another mesh: marin train resume {config.run} --set mesh.data=N"
            )
        first += count
    return steps, None


def _result(directory: RunDirectory, curriculum: Curriculum, processes: Processes) -> RunResult:
    step = directory.checkpoint_steps()[-1]
    return RunResult(
        run=directory.path,
        complete=step == curriculum.steps,
        metrics=directory.metrics,
        checkpoint=checkpoint_directory(directory.checkpoints, step),
        **processes.from_first(lambda: _figures(directory.metrics, curriculum.steps)),
    )


def _figures(metrics: Path, steps: int) -> dict[str, Any]:
    """What the metrics say of a run of so many steps."""
    losses: deque[float] = deque(maxlen=max(1, round(_TAIL * steps)))
    first: dict[str, Any] | None = None
    for record in stream_metrics(metrics):
        first = first or record
        losses.append(record["loss"])
    assert first is not None
    return {
        "steps": record["step"] + 1,
        "tokens": record["tokens"],
        "final_loss": losses[-1],
        "tail_loss": sum(losses) / len(losses),
        "unigram_loss": first["unigram_loss"],
    }
