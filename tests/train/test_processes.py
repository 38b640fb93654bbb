"""A run of two processes is the run of one, and its checkpoints go on on any number of devices."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.training import fake_source, tiny_model, write_held_out

from marin.engine import Silent
from marin.errors import MarinError
from marin.train.config import CheckpointConfig, EvaluationConfig, LogConfig, MeshShape, TrainConfig
from marin.train.curriculum import Segment
from marin.train.metrics import read_metrics
from marin.train.processes import ALONE, Processes, join
from marin.train.run import train
from marin.train.run_directory import RunDirectory

CHILD = Path(__file__).parents[1] / "support" / "train_child.py"
STEPS, STOP = 14, 4
EVALUATIONS = 7


def in_two_processes(run: Path, **changes: int) -> None:
    """Trains the first `STOP` steps in two processes of two devices each."""
    port = 20_000 + os.getpid() % 20_000
    order = {"runs": [str(run)], "steps": STEPS, "every": 100, "stop_at": STOP, **changes}
    order |= {"evaluations": EVALUATIONS, "coordinator": f"127.0.0.1:{port}", "processes": 2}
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(sys.path),
        XLA_FLAGS=re.sub(
            r"--xla_force_host_platform_device_count=\d+", "", os.environ["XLA_FLAGS"]
        ),
    )
    children = [
        subprocess.Popen(
            [sys.executable, str(CHILD), json.dumps(order | {"process": process})], env=environment
        )
        for process in range(2)
    ]
    assert [child.wait(timeout=280) for child in children] == [0, 0]


def go(run: Path, devices: int, transport: str = "local", evaluations: int = 0) -> list[float]:
    """Trains what is left of the run on so many devices; all its losses."""
    run.mkdir(exist_ok=True)
    config = TrainConfig(
        shards=Path("none"),
        run=run,
        model=tiny_model(transport=transport),
        mesh=MeshShape(expert=devices),
        checkpoint=CheckpointConfig(every=100),
        evaluation=EvaluationConfig(times=evaluations),
        log=LogConfig(wandb=False),
    )
    source = fake_source((Segment(STEPS, 8, 32, "main"),), run.parent)
    train(config, source, RunDirectory(run), progress=Silent())
    records = read_metrics(run / "metrics.jsonl")
    assert [record["step"] for record in records] == list(range(STEPS))
    return [record["loss"] for record in records]


def evaluations(run: Path) -> dict[int, dict[str, float]]:
    """What the first `STOP` steps of a run measured on held-out documents, by step."""
    records = read_metrics(run / "metrics.jsonl")[:STOP]
    found = {r["step"]: {k: v for k, v in r.items() if k.startswith("eval/")} for r in records}
    return {step: values for step, values in found.items() if values}


@pytest.mark.timeout(600)
def test_two_processes_train_as_one_and_any_number_of_devices_goes_on(tmp_path: Path) -> None:
    write_held_out(tmp_path)
    both = tmp_path / "both"
    in_two_processes(both)
    straight = go(tmp_path / "straight", 4, evaluations=EVALUATIONS)
    ours, theirs = evaluations(both), evaluations(tmp_path / "straight")
    assert list(ours) == list(theirs) == [1, 3]
    for step, values in theirs.items():
        assert ours[step] == pytest.approx(values, rel=1e-4)
    for devices, transport in ((1, "local"), (2, "ring"), (4, "local")):
        run = tmp_path / str(devices)
        shutil.copytree(both, run)
        np.testing.assert_allclose(go(run, devices, transport), straight, rtol=1e-4)
    assert straight[-1] < straight[0]


@pytest.mark.slow
def test_processes_that_share_a_model_read_the_same_rows(tmp_path: Path) -> None:
    run = tmp_path / "both"
    in_two_processes(run, expert=1, model_axis=2)
    records = read_metrics(run / "metrics.jsonl")
    assert [record["first_row"] for record in records] == list(range(0, 8 * STOP, 8))
    alone = go(tmp_path / "alone", 1)[:STOP]
    np.testing.assert_allclose([record["loss"] for record in records], alone, rtol=1e-4)


@pytest.mark.parametrize(
    ("mesh", "count", "readers"),
    [
        (MeshShape(expert=8), 2, [(0, 2), (1, 2)]),
        (MeshShape(expert=2, model=2), 2, [(0, 2), (1, 2)]),
        (MeshShape(expert=2, model=2), 4, [(0, 2), (0, 2), (1, 2), (1, 2)]),
        (MeshShape(model=4), 2, [(0, 1), (0, 1)]),
    ],
)
def test_readers_of_rows(mesh: MeshShape, count: int, readers: list[tuple[int, int]]) -> None:
    assert [Processes(index, count).reader(mesh) for index in range(count)] == readers


def test_a_process_holds_parts_of_one_model_or_whole_ones() -> None:
    with pytest.raises(MarinError, match="model = 3: expected a multiple or a divisor of the 2"):
        Processes(0, 3).reader(MeshShape(expert=2, model=3))


def test_others_do_not_wait_for_a_first_process_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr(Processes, "_told", lambda self, answer: told.append(answer) or answer)

    def fail() -> None:
        raise NotADirectoryError("checkpoints")

    with pytest.raises(NotADirectoryError):
        Processes(0, 2).from_first(fail)
    assert told == [{"error": "the first process failed: checkpoints"}]


def test_what_the_first_process_finds_is_what_it_returns() -> None:
    assert ALONE.from_first(lambda: {"step": 3}) == {"step": 3}
    assert join(None, 1, 0) == ALONE
    with pytest.raises(MarinError, match="--process 2: expected a number from 0 to 1"):
        join("127.0.0.1:1", 2, 2)
    with pytest.raises(MarinError, match="--coordinator nope: expected HOST:PORT"):
        join("nope", 2, 0)
