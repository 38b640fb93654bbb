"""A run that is killed with SIGKILL, inside saves too, ends as one that never was."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marin.train.checkpoint import complete_steps, read_state
from marin.train.metrics import read_metrics

CHILD = """
import sys
from pathlib import Path
from support.training import fake_source, tiny_model
from marin.engine import Silent
from marin.train.config import CheckpointConfig, LogConfig, MeshShape, TrainConfig
from marin.train.curriculum import Segment
from marin.train.run import train
from marin.train.run_directory import RunDirectory

run = Path(sys.argv[1])
config = TrainConfig(shards=Path("none"), run=run, model=tiny_model(), mesh=MeshShape(expert=2),
    checkpoint=CheckpointConfig(every=2, keep=2), log=LogConfig(wandb=False))
train(config, fake_source((Segment(30, 4, 32, "main"),)), RunDirectory(run), progress=Silent())
"""


def start(run: Path, compiled: Path) -> "subprocess.Popen[bytes]":
    run.mkdir(exist_ok=True)
    environment = dict(
        os.environ,
        JAX_COMPILATION_CACHE_DIR=str(compiled),
        JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS="0.2",
        PYTHONPATH=os.pathsep.join(sys.path),
        XLA_FLAGS="",
    )
    return subprocess.Popen([sys.executable, "-c", CHILD, str(run)], env=environment)


def kill_when(child: "subprocess.Popen[bytes]", moment: Callable[[], bool]) -> None:
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


@pytest.mark.timeout(900)
def test_killed_at_steps_and_inside_saves_a_run_ends_with_the_same_bits(
    tmp_path: Path, compiled_steps: Path
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert start(straight, compiled_steps).wait() == 0
    for moment in (
        lambda: is_saving(killed, 8),
        lambda: lines(killed) >= 19,
    ):
        kill_when(start(killed, compiled_steps), moment)
        for step in complete_steps(killed / "checkpoints"):
            read_state(killed / "checkpoints", step)
    assert start(killed, compiled_steps).wait() == 0
    one, other = (read_metrics(run / "metrics.jsonl") for run in (straight, killed))
    kept = ("step", "first_row", "next_row", "loss", "grad_norm", "update_norm", "cells")
    assert [[r.get(k) for k in kept] for r in one] == [[r.get(k) for k in kept] for r in other]
