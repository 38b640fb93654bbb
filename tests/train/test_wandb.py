"""The W&B mirror against a stand-in for wandb: what it logs, and that it never stalls a run."""

import json
import time
from pathlib import Path

import pytest

from marin.train import wandb_mirror, wandb_worker
from marin.train.metrics import MetricsLog
from marin.train.wandb_mirror import WandbMirror, catch_up, mirror_environment

SETTINGS = {"id": "a", "project": "p", "group": "g", "name": "n", "config": {}}
SETTINGS |= {"start": 0, "offset": 0, "history": "one"}
STAND_IN = """
import json, os, time
def Settings(**_): return None
def Histogram(values): return {"histogram": list(values)}
class Run:
    def __init__(self, path): self.path = path
    def log(self, values, step):
        with open(self.path, "a") as file: file.write(json.dumps([step, values]) + "\\n")
    def finish(self): pass
def init(dir, id, name, notes="", **_):
    if os.environ.get("STAND_IN_HANGS"): time.sleep(1000)
    if os.path.exists(os.path.join(dir, "down")): raise TimeoutError("W&B is down")
    with open(os.path.join(dir, id + ".name"), "w") as file: file.write(name + ": " + notes)
    return Run(os.path.join(dir, id + ".jsonl"))
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


def go(run: Path, start: int, stop: int, history: str = "one", loss: float = 3.0) -> None:
    """Trains steps `start` to `stop`, of which the metrics file may hold some already."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    offset = sum(map(len, lines[:start]))
    log = MetricsLog(path, offset)
    place = {"start": start, "offset": offset, "history": history}
    mirror = WandbMirror(run, {**SETTINGS, **place})
    for step in range(start, stop):
        log.write({"step": step, "loss": loss, "cells": {"a": 1}, "expert_load": [[0.5, 0.5]]})
    log.close()
    assert mirror.close()


def read(path: Path) -> list[tuple[int, dict[str, object]]]:
    return [tuple(json.loads(line)) for line in path.read_text().splitlines()]


def test_the_mirror_logs_every_step_once_over_a_restart(run: Path) -> None:
    go(run, 0, 4)
    go(run, 2, 6)  # trains steps 2 and 3 again
    logged = read(run / "a.jsonl")
    assert [step for step, _ in logged] == list(range(6))
    expected = {"loss": 3.0, "cells/a": 1, "expert_load/0": {"histogram": [0.5, 0.5]}}
    assert all(values == expected for _, values in logged)


def test_the_mirror_reads_no_more_than_it_has_to(run: Path) -> None:
    go(run, 0, 4)
    path = run / "metrics.jsonl"
    length = path.read_bytes().index(b"\n") + 1
    with path.open("r+b") as file:
        file.write(b"x" * (length - 1))  # a worker that read it would fail
    catch_up(run, {**SETTINGS, "start": 9})
    go(run, 2, 6, loss=2.25)  # the lines of other lengths
    go(run, 6, 8)
    assert [step for step, _ in read(run / "a.jsonl")] == list(range(8))


def test_a_chunk_of_lines_ends_with_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_worker, "_CHUNK_BYTES", 100)
    path = tmp_path / "metrics.jsonl"
    lines = [json.dumps({"step": step, "x": "x" * 60}) + "\n" for step in range(5)]
    path.write_text("".join(lines) + '{"step": 5')
    chunks = []
    with path.open("rb") as metrics:
        while records := wandb_worker._new_records(metrics):
            chunks.append(records)
    assert [record["step"] for chunk in chunks for _, record in chunk] == list(range(5))
    assert [offset for chunk in chunks for offset, _ in chunk] == [
        step * len(lines[0]) for step in range(5)
    ]
    assert max(map(len, chunks)) == 2


def test_steps_that_are_trained_again_with_other_data_begin_another_wandb_run(run: Path) -> None:
    go(run, 0, 4)
    go(run, 2, 5, "two", 2.0)
    go(run, 4, 6, "two", 2.0)  # killed after step 4; equal to the last bit
    go(run, 6, 7, "three", 1.0)  # a change that undoes nothing
    go(run, 3, 5, "four", 0.5)
    logged = [
        [(step, values["loss"]) for step, values in read(run / f"{name}.jsonl")]
        for name in ("a", "a-1", "a-2")
    ]
    assert logged == [
        [(0, 3.0), (1, 3.0), (2, 3.0), (3, 3.0)],
        [(2, 2.0), (3, 2.0), (4, 2.0), (5, 2.0), (6, 1.0)],
        [(3, 0.5), (4, 0.5)],
    ]
    assert (run / "a-2.name").read_text() == (
        "n-from-3: Goes on from step 3 of run a-1, whose later steps were undone."
    )


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


def wait_for_end(mirror: WandbMirror) -> None:
    assert mirror._process is not None
    mirror._process.wait(30)


def test_a_worker_that_ends_is_started_again_and_misses_no_step(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (run / "down").touch()
    log = MetricsLog(run / "metrics.jsonl")
    mirror = WandbMirror(run, SETTINGS)
    mirror.check()
    assert caplog.text == ""
    for step in range(3):
        log.write({"step": step, "loss": 3.0})
        wait_for_end(mirror)
        if step == 2:
            (run / "down").unlink()
        mirror.check()
    log.close()
    assert mirror.close()
    assert [step for step, _ in read(run / "a.jsonl")] == [0, 1, 2]
    assert caplog.text.count("the W&B mirror ended with status 1 and is started again") == 1
    assert "W&B is down" in (run / "wandb" / "mirror.log").read_text()


def test_a_worker_that_always_ends_is_given_up_and_the_run_says_what_to_do(
    run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wandb_mirror, "_RESTARTS", 1)
    (run / "down").touch()
    (run / "metrics.jsonl").touch()
    mirror = WandbMirror(run, SETTINGS)
    for _ in range(2):
        wait_for_end(mirror)
        mirror.check()
    mirror.check()
    assert not mirror.close()
    assert caplog.text.count("goes on without W&B, whose mirror ended again") == 1
    assert f"`marin train resume {run}` sends it what is missing" in caplog.text


def test_a_run_that_is_complete_sends_what_wandb_lacks_and_only_that(run: Path) -> None:
    (run / "down").touch()
    log = MetricsLog(run / "metrics.jsonl")
    mirror = WandbMirror(run, SETTINGS)
    for step in range(4):
        log.write({"step": step, "loss": 3.0})
    log.close()
    assert not mirror.close()
    (run / "down").unlink()
    catch_up(run, {**SETTINGS, "start": 4})
    assert [step for step, _ in read(run / "a.jsonl")] == [0, 1, 2, 3]
    (run / "wandb" / "order.json").unlink()
    catch_up(run, {**SETTINGS, "start": 4})
    assert not (run / "wandb" / "order.json").exists()


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
