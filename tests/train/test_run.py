"""Whole runs on a tiny model over 4 virtual devices."""

import json
import math
import shutil
import sys
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import jax
import numpy as np
import pytest
from support.packing import make_schedule, write_store
from support.training import DROPPING, fake_source, tiny_model, write_held_out

from marin.dispatch import Local
from marin.engine import Progress, Silent, write_manifest
from marin.errors import MarinError
from marin.model import Batch, make_mesh
from marin.packing import pack, plan
from marin.train.checkpoint import Checkpoints, complete_steps
from marin.train.config import (
    CheckpointConfig,
    EvaluationConfig,
    LogConfig,
    MeshShape,
    TrainConfig,
    WatchConfig,
)
from marin.train.curriculum import Segment
from marin.train.edge import write_config
from marin.train.evaluation import held_out_rows
from marin.train.metrics import read_metrics
from marin.train.operations import shorten
from marin.train.rates import compute_scaled_rates
from marin.train.run import RunResult, resume, train
from marin.train.run import run as start
from marin.train.run_directory import RunDirectory
from marin.train.state import fill_named, named_arrays, take_apart

SEGMENTS = (Segment(6, 8, 32, "main"), Segment(4, 4, 64, "anneal"))
TIMES = ("time/", "tokens_per_second", "flops_per_second", "mfu")


def config(run: Path, **changes: object) -> TrainConfig:
    base = TrainConfig(
        shards=Path("none"),
        run=run,
        model=tiny_model(**DROPPING),
        mesh=MeshShape(expert=4),
        checkpoint=CheckpointConfig(every=3, keep=2),
        evaluation=EvaluationConfig(times=2),
        log=LogConfig(wandb=False, detail_every=2, peak_flops=1e9),
    )
    return replace(base, **changes)


class Notes(Silent):
    """Keeps what would be said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def note(self, text: str) -> None:
        self.said.append(text)


def go(run: Path, progress: Progress = Silent(), **changes: object) -> RunResult:
    """Trains in `run`; the held-out documents lie beside it."""
    run.mkdir(exist_ok=True)
    if not (run.parent / "validation").exists():
        write_held_out(run.parent)
    source = fake_source(SEGMENTS, run.parent)
    return train(config(run, **changes), source, RunDirectory(run), progress=progress)


def without_times(path: Path) -> list[dict[str, object]]:
    return [
        {key: value for key, value in record.items() if not key.startswith(TIMES)}
        for record in read_metrics(path)
    ]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return go(tmp_path_factory.mktemp("runs") / "straight")


def test_a_run_follows_its_plan_and_learns(straight: RunResult) -> None:
    records = read_metrics(straight.metrics)
    assert straight.complete
    assert [r["step"] for r in records] == list(range(10))
    assert [r["seq_len"] for r in records] == [32] * 6 + [64] * 4
    assert [r["phase"] for r in records] == ["main"] * 6 + ["anneal"] * 4
    assert all(after["first_row"] == before["next_row"] for before, after in pairwise(records))
    peak = compute_scaled_rates(10 * 256, 32, 256)
    assert records[-1]["lr/muonh"] == pytest.approx(0.05 * peak.muonh)
    assert records[-1]["lr/adam"] == pytest.approx(0.05 * peak.adam)
    assert records[-1]["mfu"] == pytest.approx(records[-1]["flops_per_second"] / 4e9)
    assert sum(records[-1]["cells_target"].values()) == pytest.approx(10 * 8 * 32, abs=1)
    assert sum(records[-1]["cells"].values()) == records[-1]["tokens"] == 10 * 8 * 32
    assert all(math.isfinite(r["loss"]) and r["grad_norm"] > 0 for r in records)
    assert records[-1]["loss"] < records[0]["loss"]
    for layer in records[0]["expert_load"]:
        assert sum(layer) == pytest.approx(1, abs=1e-4)
    for r in records:
        parts = [r[f"time/{part}"] for part in ("compute", "data", "checkpoint")]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(r["time/step"])
    norms = records[-1]["router_bias_norm_by_layer"]
    assert sum(norms) / len(norms) == pytest.approx(records[-1]["router_bias_norm"])
    assert "router_bias_norm_by_layer" not in records[1]


def test_evaluations_are_of_the_next_steps_weights_and_bias(straight: RunResult) -> None:
    """Against the model of the last checkpoint, on one device."""
    rows = held_out_rows(straight.run.parent, 32, 10_000, None)
    assert rows is not None
    mesh = make_mesh(devices=jax.devices()[:1])
    trainee = take_apart(config(straight.run).model, mesh)
    checkpoints = Checkpoints(straight.run / "checkpoints", keep=2)
    state = fill_named(trainee.layout, checkpoints.restore(10, named_arrays(trainee.layout)))
    checkpoints.close()
    model = trainee.model(state.parameters, state.router_bias)
    batch = Batch(rows.tokens, rows.segment_ids, rows.positions, rows.loss_mask)
    scale = 1 + 0.1 * math.log(2)
    evaluate = jax.jit(lambda b: model.loss(b, mesh=mesh, qk_scale=scale, transport=Local())[1])
    aux = evaluate(batch)
    nats, predicted = np.asarray(aux.row_ce), np.asarray(aux.row_tokens)
    parts = [rows.domain == index for index in range(len(rows.names))]
    by_domain = [nats[part].sum() / predicted[part].sum() for part in parts]

    records = read_metrics(straight.metrics)
    assert [r["step"] for r in records if "eval/loss_micro" in r] == [4, 9]
    last = records[-1]
    found = [last[f"eval/dropless/{key}"] for key in ("loss_micro", "loss_macro", "loss/c00")]
    expected = [nats.sum() / predicted.sum(), np.mean(by_domain), by_domain[0]]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert last["eval/loss_micro"] != last["eval/dropless/loss_micro"]
    assert last["eval/drop_fraction"] > 0
    assert records[4]["eval/loss_micro"] != last["eval/loss_micro"]


def test_a_run_in_two_parts_equals_one_to_the_last_bit(straight: RunResult, tmp_path: Path) -> None:
    run = tmp_path / "parts"
    first = go(run, stop_at=4)
    assert (first.complete, first.steps) == (False, 4)
    notes = Notes()
    second = go(run, notes, profile=1)
    assert [note.partition(" (")[0] for note in notes.said] == [
        "Train: going on from step 4 of 10",
        "Train: compiling the step for rows of 32 tokens",
    ]
    assert f"{run}/checkpoints/" in notes.said[0]
    assert list((run / "profile").rglob("*.xplane.pb"))
    assert second.final_loss == straight.final_loss
    assert without_times(second.metrics) == without_times(straight.metrics)


def test_a_complete_run_is_returned_as_it_is(straight: RunResult) -> None:
    before = straight.metrics.read_bytes()
    assert go(straight.run) == straight
    assert straight.metrics.read_bytes() == before


def test_the_mirror_is_looked_after_at_checkpoints_and_when_the_run_is_complete(
    straight: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = []

    class Mirror:
        def __init__(self, run: Path, settings: dict[str, object]) -> None:
            called.append(("start", settings["start"]))

        def check(self) -> None:
            called.append(("check", None))

        def close(self) -> None:
            called.append(("close", None))

    def catch_up(run: Path, settings: dict[str, object]) -> None:
        called.append(("catch up", settings["start"]))

    module = sys.modules["marin.train.run"]
    monkeypatch.setattr(module, "WandbMirror", Mirror)
    monkeypatch.setattr(module, "catch_up", catch_up)
    go(tmp_path / "run", stop_at=4, log=LogConfig(), evaluation=EvaluationConfig(times=0))
    go(straight.run, log=LogConfig())
    go(straight.run)
    assert called == [
        ("start", 0), ("check", None), ("check", None), ("close", None), ("catch up", 10),
    ]  # fmt: skip


def test_a_directory_of_another_run_is_refused_by_the_key_that_differs(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.claim(config(tmp_path))
    directory.claim(config(tmp_path, log=LogConfig(wandb=True), stop_at=3))
    directory.claim(config(tmp_path, mesh=MeshShape(expert=2), model=tiny_model(transport="ring")))
    with pytest.raises(MarinError, match=r"another model\.layers \(2, here 3\)"):
        directory.claim(config(tmp_path, model=tiny_model(layers=3)))


def test_two_processes_cannot_train_the_same_run(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    with (
        directory.locked(),
        pytest.raises(MarinError, match="another marin process"),
        RunDirectory(tmp_path).locked(),
    ):
        pass


def test_batches_that_the_mesh_cannot_cut_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match="batches of 8 rows of 32 cannot be cut into 16"):
        go(tmp_path, microbatches=4)


@pytest.mark.slow
def test_a_mesh_trains_up_to_the_batches_that_it_cannot_cut_and_another_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    segments = (Segment(1, 4, 32, "a"), Segment(2, 8, 32, "a"), Segment(1, 4, 32, "b"))

    def on(devices: int, **changes: object) -> RunResult:
        changes |= {"model": tiny_model(), "evaluation": EvaluationConfig(times=0)}
        made = config(tmp_path, mesh=MeshShape(expert=devices), **changes)
        source = fake_source(segments)
        return train(made, source, RunDirectory(tmp_path), progress=Silent())

    with pytest.raises(MarinError, match="batches of 4 rows of 32 cannot be cut into 8"):
        on(8)
    assert on(4, stop_at=1).steps == 1
    assert caplog.messages == []
    stopped = on(8)  # batches that are trained no longer matter
    assert (stopped.complete, stopped.steps, stopped.checkpoint.name) == (False, 3, "step-00000003")
    says = f"{tmp_path}: from step 3 on batches of 4 rows of 32 cannot be cut into 8 equal parts"
    warned, ended = caplog.messages
    assert warned.startswith(says)
    assert f"marin train resume {tmp_path} --set mesh" in warned
    assert ended.startswith(f"{tmp_path}: stopped before step 3: from step 3 on batches of 4 rows")
    with pytest.raises(MarinError, match="batches of 4 rows of 32 cannot be cut into 8"):
        on(8)
    assert on(4).complete


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluation": EvaluationConfig(times=2, tokenizer=Path("none.json"))}, "none.json"),
        ({"watch": WatchConfig(forecast=Path("none.json"))}, "none.json"),
        ({"mesh": MeshShape(expert=3)}, "cannot be cut into 3"),
    ],
)
def test_a_run_that_is_refused_is_as_it_was(
    straight: RunResult, tmp_path: Path, changes: dict[str, object], said: str
) -> None:
    run = tmp_path / "run"
    write_held_out(tmp_path)
    shutil.copytree(straight.run, run)
    write_config(config(run), run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    source = fake_source(SEGMENTS, tmp_path)
    first = min(complete_steps(run / "checkpoints"))
    with pytest.raises(MarinError, match=said):
        train(config(run, **changes), source, RunDirectory(run), at=first, progress=Silent())
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_that_is_changed_at_an_older_checkpoint_goes_on_from_there(tmp_path: Path) -> None:
    store = write_store(tmp_path, {"c00q0": [40] * 90})
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 32, 4)], 10 * 4 * 32)
    shards = pack(plan(store, schedule, tmp_path), tmp_path)
    run = tmp_path / "run"
    once = {"evaluation": EvaluationConfig(times=0), "checkpoint": CheckpointConfig(2, keep=2)}
    made = config(run, shards=shards, model=tiny_model(vocab=50_000), stop_at=4, **once)
    start(made)
    before = (run / "metrics.jsonl").read_bytes().splitlines()
    shorten(run, to=9 * 4 * 32, at=2)
    assert complete_steps(run / "checkpoints") == [2, 4]
    assert (run / "metrics.jsonl").read_bytes().splitlines() == before
    assert resume(run, settings=["stop_at=3"]).steps == 3
    assert complete_steps(run / "checkpoints") == RunDirectory(run).checkpoint_steps() == [2, 3]
    after = (run / "metrics.jsonl").read_bytes().splitlines()
    assert len(after) == 3
    assert after[:2] == before[:2]
    assert RunDirectory(run).planned_curriculum().steps == 9


def test_a_checkpoint_off_the_plan_is_refused(straight: RunResult, tmp_path: Path) -> None:
    run = tmp_path / "other"
    run.mkdir()
    (run / "checkpoints").symlink_to(straight.run / "checkpoints")
    plan = json.loads((straight.run / "plan.json").read_text())
    plan["curriculum"]["segments"][0]["steps"] = 7
    (run / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(MarinError, match="is not on the plan"):
        train(config(run), fake_source(SEGMENTS), RunDirectory(run), progress=Silent())


def test_a_run_directory_is_new_empty_or_a_runs(tmp_path: Path) -> None:
    def opened(path: Path) -> None:
        with ExitStack() as stack:
            RunDirectory(path).open(config(path), stack)

    shards, theirs, file = (tmp_path / name for name in ("shards", "theirs", "mk.py"))
    shards.mkdir()
    write_manifest(shards, "shards", parameters={}, inputs={}, rows={})
    theirs.mkdir()
    (theirs / "config.toml").write_text("mine")
    file.write_text("x")
    for path, message in (
        (shards, "a finished shards"),
        (shards / "run", "a finished shards"),
        (theirs, "holds files but no run"),
        (file, "not a folder"),
    ):
        with pytest.raises(MarinError, match=message):
            opened(path)
    assert [path.name for path in shards.iterdir()] == ["manifest.json"]
    assert [path.name for path in theirs.iterdir()] == ["config.toml"]
    assert (theirs / "config.toml").read_text() == "mine"

    run = tmp_path / "run"
    run.mkdir()
    opened(run)
    opened(run)
    (run / "config.toml").unlink()  # killed before it was written
    opened(run)
