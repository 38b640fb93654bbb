"""The W&B mirror against a stand-in for wandb: what it logs, and that it never stalls a run."""

import json
import time
from pathlib import Path

import pytest

from marin.train import wandb_mirror
from marin.train.metrics import MetricsLog
from marin.train.wandb_mirror import WandbMirror, mirror_environment

SETTINGS = {"id": "a", "project": "p", "group": "g", "name": "n", "config": {}}
STAND_IN = """
import json, os, time
def Settings(**_): return None
def Histogram(values): return {"histogram": list(values)}
class Run:
    def __init__(self, path): self.path = path
    def log(self, values, step):
        with open(self.path, "a") as file: file.write(json.dumps([step, values]) + "\\n")
    def finish(self): pass
def init(dir, **_):
    if os.environ.get("STAND_IN_HANGS"): time.sleep(1000)
    return Run(os.path.join(dir, "logged.jsonl"))
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "wandb.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", str(packages))
    path = tmp_path / "run"
    path.mkdir()
    return path


def test_the_mirror_logs_every_step_once_over_a_restart(run: Path) -> None:
    length = 0
    for start, stop in ((0, 4), (2, 6)):  # the second start trains steps 2 and 3 again
        log = MetricsLog(run / "metrics.jsonl", length)
        mirror = WandbMirror(run, SETTINGS)
        for step in range(start, stop):
            if step == 2:
                length = log.sync()
            log.write({"step": step, "loss": 3.0, "cells": {"a": 1}, "expert_load": [[0.5, 0.5]]})
        log.close()
        assert mirror.close()
    logged = [json.loads(line) for line in (run / "logged.jsonl").read_text().splitlines()]
    assert [step for step, _ in logged] == list(range(6))
    expected = {"loss": 3.0, "cells/a": 1, "expert_load/0": {"histogram": [0.5, 0.5]}}
    assert all(values == expected for _, values in logged)


def test_a_hanging_wandb_delays_neither_steps_nor_the_end(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_HANGS", "1")
    monkeypatch.setattr(wandb_mirror, "_GRACE_SECONDS", 0.2)
    log = MetricsLog(run / "metrics.jsonl")
    mirror = WandbMirror(run, SETTINGS)
    begin = time.perf_counter()
    for step in range(1_000):
        log.write({"step": step, "loss": 3.0})
    assert time.perf_counter() - begin < 2
    log.close()
    assert not mirror.close()


@pytest.mark.parametrize("init", ["raise ImportError('broken')", "import time; time.sleep(1000)"])
def test_a_long_order_waits_for_no_reader(
    run: Path, init: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.parent / "packages" / "wandb.py").write_text(init)
    monkeypatch.setattr(wandb_mirror, "_GRACE_SECONDS", 0.2)
    (run / "metrics.jsonl").touch()
    begin = time.perf_counter()
    mirror = WandbMirror(run, {**SETTINGS, "config": {"long": "x" * 200_000}})
    assert not mirror.close()
    assert time.perf_counter() - begin < 10


def test_a_mirror_that_cannot_start_is_done_without(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "wandb").touch()  # a file where the folder is to be
    assert not WandbMirror(run, SETTINGS).close()
    assert "goes on without W&B" in caplog.text


def test_offline_unless_the_usual_environment_says_otherwise() -> None:
    assert mirror_environment({})["WANDB_MODE"] == "offline"
    assert mirror_environment({"WANDB_MODE": "online"})["WANDB_MODE"] == "online"
    assert "WANDB_MODE" not in mirror_environment({"WANDB_API_KEY": "key"})
