"""The steps of a run, in each of its processes.

The main thread takes a ready batch and starts a step; everything slow (reading ahead, compiling the
next row length, writing checkpoints, W&B) happens beside it. A step's numbers are looked at only
after the next one has been started, so the devices never wait for the host; except before a batch
of another shape, whose step may still be compiling.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from marin.train.checkpoint import Checkpoints
from marin.train.compiler import StepCompiler
from marin.train.config import TrainConfig
from marin.train.curriculum import Curriculum, StepPlan
from marin.train.data import ReadyBatch
from marin.train.evaluation import Evaluator
from marin.train.metrics import MetricsLog
from marin.train.source import Source
from marin.train.state import TrainState, named_arrays
from marin.train.step import StepMetrics, constants_of
from marin.train.telemetry import (
    CellTokens,
    Cost,
    Timings,
    bias_norm_by_layer,
    cursor_of,
    drops_by_layer,
    expert_load,
    step_record,
)
from marin.train.trace import Trace
from marin.train.wandb_mirror import WandbMirror
from marin.train.watch import Watch


@dataclass(frozen=True)
class _Started:
    """A step that the devices work on: the first row that was read for it and the one after the
    last, and seconds that it waited for before it could start."""

    plan: StepPlan
    rows: tuple[int, int]
    metrics: StepMetrics
    compile: float
    checkpoint: float


class Loop:
    """Steps, records and checkpoints of one process's stretch of a run.

    `saved` is the state of the checkpoint that it starts from, or only `unigram_loss`. Without a
    `log` nothing is written: another process of the run does.
    """

    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        curriculum: Curriculum,
        checkpoints: Checkpoints,
        evaluator: Evaluator | None,
        cost: Cost,
        log: MetricsLog | None,
        mirror: WandbMirror | None,
        saved: dict[str, Any],
        watch: Watch,
    ) -> None:
        self._config = config
        self._source = source
        self._curriculum = curriculum
        self._checkpoints = checkpoints
        self._evaluator = evaluator
        self._cost = cost
        self._log = log
        self._mirror = mirror
        self._cells = CellTokens(source.cells, saved.get("cells", {}))
        self._unigram = float(saved["unigram_loss"])
        self._watch = watch
        self._clock = time.perf_counter()
        self._data_seconds = 0.0  # waited since then

    def go(
        self,
        steps: range,
        state: TrainState,
        batches: Iterator[ReadyBatch],
        compiler: StepCompiler,
        advance: Callable[[int], None],
    ) -> None:
        """Trains `steps` and leaves a checkpoint after the last one. Consumes `state`."""
        before: _Started | None = None
        checkpoint_seconds = 0.0
        trace = Trace(self._config, steps)
        self._clock = time.perf_counter()
        for step in steps:
            trace.before(step)
            plan = self._curriculum.at(step)
            asked = time.perf_counter()
            ready = next(batches)
            self._data_seconds += time.perf_counter() - asked
            # By the plan, not by whether this process has compiled: the watch may talk to the other
            # processes over the devices, and all are to do so before the same step.
            if before is not None and before.plan.segment.shape != plan.segment.shape:
                self._finish(before, advance)
                before = None
            asked = time.perf_counter()
            compiled = compiler.step(plan.segment)
            compile_seconds = time.perf_counter() - asked
            state, metrics = compiled(state, ready.batch, ready.cells, constants_of(plan))
            waits = (compile_seconds, checkpoint_seconds)
            started = _Started(plan, (ready.first_row, ready.next_row), metrics, *waits)
            if before is not None:
                self._finish(before, advance)
            before, checkpoint_seconds = started, 0.0
            self._checkpoints.check()
            done = step + 1
            due = self._evaluator is not None and done in self._evaluator.steps
            saves = done % self._config.checkpoint.every == 0 or done == steps.stop
            if due or saves:
                self._finish(started, advance, state if due else None)
                before = None
            if saves:
                asked = time.perf_counter()
                self._save(done, state)
                checkpoint_seconds = time.perf_counter() - asked
        trace.stop()

    def _finish(
        self, started: _Started, advance: Callable[[int], None], evaluate: TrainState | None = None
    ) -> None:
        """Waits for a step and writes its record, with an evaluation of the state it led to."""
        plan = started.plan
        metrics: StepMetrics = jax.device_get(started.metrics)
        now = time.perf_counter()
        seconds = now - self._clock - started.compile
        values: dict[str, float] = {}
        if evaluate is not None and self._evaluator is not None:
            values = self._evaluator.measure(evaluate, plan.qk_scale)
        self._clock = time.perf_counter()
        timings = Timings(
            step=seconds,
            data=self._data_seconds,
            compile=started.compile,
            checkpoint=started.checkpoint,
            evaluation=self._clock - now,
        )
        self._data_seconds = 0.0
        self._cells.add(np.asarray(metrics.cell_rows), plan.segment.seq_len)
        record = step_record(plan, started.rows, metrics, timings, self._cost) | values
        record["transport"] = self._config.model.transport
        if plan.step == 0:
            record["unigram_loss"] = self._unigram
        if (
            plan.step % self._config.log.detail_every == 0
            or plan.step + 1 == self._curriculum.steps
        ):
            record["cells"] = self._cells.to_json()
            record["cells_target"] = self._targets(plan)
            record["expert_load"] = expert_load(metrics)
            record["drop_fraction_by_layer"] = drops_by_layer(metrics)
            record["router_bias_norm_by_layer"] = bias_norm_by_layer(metrics)
        alarms = self._watch.look(record)
        if alarms:
            record["alarms"] = [alarm.to_json() for alarm in alarms]
        if self._log is not None:
            self._log.write(record)
        advance(1)
        self._watch.enforce(self._config.run)

    def _targets(self, plan: StepPlan) -> dict[str, float]:
        """What the mixture asks for up to the end of a step, beside what was read."""
        tokens = self._source.targets(plan.first_row + plan.segment.batch_size).round(1).tolist()
        return dict(zip(self._source.cells, tokens, strict=True))

    def _save(self, step: int, state: TrainState) -> None:
        """Starts a checkpoint; every record up to it is on disk before it can be complete."""
        if self._mirror is not None:
            self._mirror.check()
        self._checkpoints.save(
            step,
            named_arrays(state),
            {
                "cursor": cursor_of(self._curriculum, self._source, step),
                "curriculum": self._curriculum.to_json(),
                "seed": self._config.seed,
                "cells": self._cells.to_json(),
                "unigram_loss": self._unigram,
                "metrics_bytes": 0 if self._log is None else self._log.sync(),
            },
        )
