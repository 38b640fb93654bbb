"""A run that is killed with SIGKILL, inside saves too, ends as one that never was."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

import pytest
from support.training import DROPPING

from marin.train.checkpoint import complete_steps, read_state
from marin.train.metrics import read_metrics

Child: TypeAlias = "subprocess.Popen[bytes]"
CHILD = Path(__file__).parents[1] / "support" / "train_child.py"


def start(*runs: Path, environment: Mapping[str, str] = {}, **order: object) -> Child:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    order = {"steps": 16, "every": 2, "model": DROPPING, **order, "runs": [str(r) for r in runs]}
    return subprocess.Popen([sys.executable, str(CHILD), json.dumps(order)], env=environment)


def kill_when(child: Child, moment: Callable[[], bool]) -> None:
    while not moment():
        assert child.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)
    child.send_signal(signal.SIGKILL)
    child.wait()


def lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def is_saving(run: Path, after: int) -> bool:
    """Whether a checkpoint past step `after` is being written."""
    return any(
        int(path.name.removeprefix("step-")) > after and not (path / "manifest.json").exists()
        for path in run.glob("checkpoints/step-*")
    )


@pytest.mark.timeout(600)
def test_killed_at_steps_and_inside_saves_a_run_ends_with_the_same_bits(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    for moment in (
        lambda: is_saving(killed, 4),
        lambda: lines(killed) >= 11,
    ):
        kill_when(start(killed), moment)
        for step in complete_steps(killed / "checkpoints"):
            read_state(killed / "checkpoints", step)
    assert start(killed, straight).wait() == 0
    one, other = (read_metrics(run / "metrics.jsonl") for run in (straight, killed))
    kept = ("step", "first_row", "next_row", "loss", "grad_norm", "update_norm", "cells")
    assert len(one) == 16
    assert [[r.get(k) for k in kept] for r in one] == [[r.get(k) for k in kept] for r in other]


def test_a_run_that_is_started_again_finds_its_compiled_steps(tmp_path: Path) -> None:
    run = tmp_path / "run"

    def train_to(step: int) -> set[str]:
        # One device has no collectives, whose order the quick emitters' programs lose in a cache.
        child = start(
            run, expert=1, stop_at=step, environment={"JAX_ENABLE_COMPILATION_CACHE": "true"}
        )
        assert child.wait() == 0
        return {p.name for p in (run / "compiled").iterdir() if p.name.startswith("jit_step-")}

    compiled = train_to(2)
    assert len({name.removesuffix("-atime").removesuffix("-cache") for name in compiled}) == 1
    assert train_to(4) == compiled
    assert len(read_metrics(run / "metrics.jsonl")) == 4
