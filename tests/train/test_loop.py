"""The steps of one process, computed by a stand-in: their order, and what is said of them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from support.training import CELLS, fake_source, rows, tiny_model

from marin.model import make_mesh
from marin.train.compiler import StepCompiler
from marin.train.config import LogConfig, TrainConfig, WatchConfig
from marin.train.curriculum import Curriculum, Segment
from marin.train.data import ReadyBatch, lay_out
from marin.train.loop import Loop
from marin.train.optimizer import GROUPS
from marin.train.processes import Processes
from marin.train.step import StepMetrics
from marin.train.telemetry import Cost
from marin.train.watch import Watch

SEGMENTS = (Segment(3, 8, 32, "main"), Segment(3, 4, 64, "main"))


class Late(Future[Any]):
    """A step that is not compiled before it is waited for."""

    waited = False

    def done(self) -> bool:
        return self.waited

    def result(self, timeout: float | None = None) -> Any:
        self.waited = True
        return super().result(timeout)


def no_metrics() -> StepMetrics:
    zeros = dict.fromkeys(StepMetrics._fields, np.zeros(1, np.int32))
    scalars = ("loss", "ce", "z_loss", "balance_loss", "tokens")
    zeros |= dict.fromkeys(scalars, np.float32(0)) | {"load": np.zeros((1, 2), np.int32)}
    zeros |= {"cell_rows": np.zeros(len(CELLS), np.int32)}
    norms = dict.fromkeys(GROUPS, np.float32(0))
    return StepMetrics(**zeros | {f"{kind}_norm": norms for kind in ("grad", "update", "param")})


def go(
    compiled: type[Future[Any]], run: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], list[dict[str, Any]]]:
    """What one of two processes does in which order, where its steps are compiled so; its records.
    The batch of step `n` has the rows from 100 n to 100 n + 50."""
    done: list[str] = []
    records: list[dict[str, Any]] = []

    def tell(self: Processes, answer: dict[str, Any]) -> dict[str, Any]:
        done.append("told")
        return {"value": None}

    def step_of(segment: Segment) -> Callable[..., Any]:
        def step(state: Any, *_: Any) -> Any:
            done.append(f"step of {segment.seq_len}")
            return state, no_metrics()

        return step

    monkeypatch.setattr(Processes, "_told", tell)
    futures: dict[tuple[int, int], Future[Any]] = {}
    for segment in SEGMENTS:
        futures[segment.batch_size, segment.seq_len] = made = compiled()
        made.set_result(step_of(segment))
    config = TrainConfig(
        shards=Path("none"), run=run, model=tiny_model(), log=LogConfig(detail_every=100)
    )
    curriculum = Curriculum.plan(SEGMENTS, hidden=32)
    watch = Watch(WatchConfig(stop_on=("data_wait",)), Processes(1, 2))
    checkpoints: Any = SimpleNamespace(check=lambda: None, save=lambda *_: None)
    cost = Cost({segment.seq_len: 1.0 for segment in SEGMENTS}, None)
    saved = {"unigram_loss": 1.0}
    source = fake_source(SEGMENTS)
    log: Any = SimpleNamespace(write=records.append, sync=lambda: 0)
    loop = Loop(config, source, curriculum, checkpoints, None, cost, log, None, saved, watch)
    batch: Any = None
    cells = jax.numpy.zeros(1)
    batches = (
        ReadyBatch(step, batch, cells, 100 * step, 100 * step + 50)
        for step in range(curriculum.steps)
    )
    state: Any = {}
    with ThreadPoolExecutor(1) as pool:
        compiler = StepCompiler(futures, pool)
        loop.go(range(curriculum.steps), state, batches, compiler, lambda _: None)
    return done, records


def test_processes_talk_before_the_same_steps_whatever_they_have_compiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, late = (go(kind, tmp_path, monkeypatch)[0] for kind in (Future, Late))
    assert prompt == late
    assert prompt.count("told") == 6
    switch = prompt.index("step of 64")
    assert prompt[:switch].count("told") == 3


def test_the_rows_of_a_record_are_those_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, records = go(Future, tmp_path, monkeypatch)
    read = [(record["first_row"], record["next_row"]) for record in records]
    assert read == [(100 * step, 100 * step + 50) for step in range(6)]
    ready = lay_out(rows(0, np.arange(16, 24), 32), make_mesh(), 1)
    assert (ready.first_row, ready.next_row) == (16, 24)
