"""Ladders of run directories, and of what W&B keeps of the same runs."""

import json
import shutil
import struct
from dataclasses import fields, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from support.ladder import STEPS, write_run

from marin.errors import MarinError
from marin.ladder import Ladder, Model, fit_law, forecast
from marin.ladder.forecast import find_target
from marin.ladder.grid import MODEL_RECIPE, POOLED_RECIPE
from marin.ladder.sources import find_run, load
from marin.ladder.wandb_files import is_wandb, read_wandb
from marin.model import HeroConfig
from marin.train import EvaluationConfig
from marin.train.edge import load_config, write_config
from marin.train.metrics import MetricsLog, read_metrics
from marin.train.wandb_mirror import WandbMirror

SIZES = (16, 32, 64, 96)
METRIC = "eval/dropless/loss_macro"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root / f"d{hidden}", hidden) for hidden in SIZES]


def settings(run: Path) -> dict[str, Any]:
    """What the trainer tells W&B of a run."""
    config = load_config(run / "config.toml").to_dict()
    return config | {"plan": json.loads((run / "plan.json").read_text())}


def test_runs_are_rungs_of_their_own_sizes_and_evaluations(runs: list[Path]) -> None:
    ladder = load(runs[:3], None)
    assert ladder.metric == METRIC
    assert [rung.name for rung in ladder.rungs] == ["d16", "d32", "d64"]
    assert all(a.train_flops < b.train_flops for a, b in pairwise(ladder.rungs))
    for rung in ladder.rungs:
        progress, values = rung.curve(METRIC)
        assert (len(progress), progress[-1]) == (20, 1.0)
        assert values[-1] == pytest.approx(1 + rung.train_flops**-0.1)
        assert len(rung.curve("loss")[0]) == len(rung.metrics["loss"][0]) == STEPS
    law = fit_law(ladder, floor=None)
    assert law.exponent == pytest.approx(0.1, abs=1e-3)


def test_the_next_run_is_forecast_from_the_smaller_ones(runs: list[Path]) -> None:
    ladder, truth = load(runs[:3], None), find_run(runs[3], "", METRIC)
    text = f"{truth.train_flops},{truth.tokens},{truth.active_params}"
    band = forecast(ladder, find_target(ladder, text), Model()).band
    assert band.middle[-1] == pytest.approx(truth.curve(METRIC)[1][-1], rel=0.02)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tokenizer": "other"}, "mixed recipes: tokenizer is t in d16 and other in d64"),
        ({"weights": (0.4, 0.6)}, "mixed recipes: mixture is mix-"),
        ({"top_k": 1}, "mixed recipes: top_k is 2 in d16 and 1 in d64"),
        ({"steps": 1}, "2 rungs with evaluations (d16, d32)"),
    ],
)
def test_runs_that_cannot_be_compared_are_refused_in_one_line(
    runs: list[Path], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    other = write_run(tmp_path / "d64", 64, **change)
    with pytest.raises(MarinError) as refusal:
        load([*runs[:2], other], None)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


# What `marin ladder plan` varies, and what changes the speed of a step alone.
MODEL_SIZE = {"hidden", "layers", "heads", "kv_local", "kv_global", "latent", "expert_width"}
MODEL_SPEED = {"attention", "remat", "cross_entropy_block"}
CHANGED: dict[str, Any] = {
    "experts": 8, "top_k": 1, "vocab": 128, "transport": "ring", "head_dim": 16,
    "shared_experts": 4, "window": 8, "global_every": 2, "gate_rank": 2, "conv_taps": 2,
    "rope_theta": 1e5, "query_multiplier": 1.0, "combine_sum": 1.0, "init_scale": 1.0,
    "norm_epsilon": 1e-5, "z_loss": 0.0, "auxiliary_balance": 0.01, "sequence_balance": 0.01,
    "dtype": "bfloat16", "waves": 1, "transport_capacity": 9.0, "receiver_capacity": 9.0,
    "drop_policy": "fair", "stripe": True,
}  # fmt: skip


def test_every_field_of_a_model_is_size_speed_or_recipe() -> None:
    names = {field.name for field in fields(HeroConfig)}
    assert set(CHANGED) == {*MODEL_RECIPE, *POOLED_RECIPE}
    assert names == {*CHANGED, *MODEL_SIZE, *MODEL_SPEED}


@pytest.fixture
def uncounted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are not traced: width stands for their sizes."""
    monkeypatch.setattr("marin.ladder.runs.active_parameters", lambda model: model.hidden)
    monkeypatch.setattr("marin.ladder.runs.total_parameters", lambda model: model.hidden)
    monkeypatch.setattr("marin.ladder.runs.train_flops_per_token", lambda model, _: model.hidden)


def _configured(run: Path, to: Path, model: dict[str, Any], **changes: Any) -> Path:
    """A copy of a run under another configuration."""
    shutil.copytree(run, to)
    config = load_config(run / "config.toml")
    write_config(replace(config, model=replace(config.model, **model), **changes), to)
    return to


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize("field", CHANGED)
def test_runs_of_models_that_differ_in_more_than_size_are_mixed(
    runs: list[Path], tmp_path: Path, field: str
) -> None:
    shared = {"transport": "pooled_wave"} if field in POOLED_RECIPE else {}
    same = [_configured(run, tmp_path / run.name, shared) for run in runs[:2]]
    other = _configured(runs[2], tmp_path / "d64", shared | {field: CHANGED[field]})
    with pytest.raises(MarinError, match=rf"mixed recipes: {field} is .* in d16 and .* in d64"):
        load([*same, other], None)


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("qk_extension", {"qk_extension": 0.2}),
        ("evaluation_tokens", {"evaluation": EvaluationConfig(tokens=64)}),
        ("evaluation_seq_len", {"evaluation": EvaluationConfig(seq_len=16)}),
    ],
)
def test_runs_that_were_trained_or_evaluated_otherwise_are_mixed(
    runs: list[Path], tmp_path: Path, key: str, changes: dict[str, Any]
) -> None:
    other = _configured(runs[2], tmp_path / "d64", {}, **changes)
    with pytest.raises(MarinError, match=f"mixed recipes: {key} is"):
        load([*runs[:2], other], None)


@pytest.mark.usefixtures("uncounted")
def test_runs_that_decay_otherwise_are_mixed(runs: list[Path], tmp_path: Path) -> None:
    other = _configured(runs[2], tmp_path / "d64", {})
    plan = json.loads((other / "plan.json").read_text())
    plan["curriculum"]["decay"][-1][1] = 0.5
    (other / "plan.json").write_text(json.dumps(plan))
    says = r"schedule is 0\.00 at 0%, 1\.00 at 1%, 0\.05 at 100% in d16 and .*0\.50 at 100% in d64"
    with pytest.raises(MarinError, match=says):
        load([*runs[:2], other], None)


@pytest.mark.usefixtures("uncounted")
def test_what_changes_speed_alone_is_no_recipe(runs: list[Path], tmp_path: Path) -> None:
    faster = {"attention": "reference", "remat": "none", "cross_entropy_block": 16, "waves": 1}
    other = _configured(runs[2], tmp_path / "d64", faster, microbatches=2)
    assert len(load([*runs[:2], other], None).rungs) == 3


def test_a_loss_named_as_its_coefficient_is_no_recipe(tmp_path: Path) -> None:
    rungs = [
        {"name": f"r{size}", "steps": 10, "tokens": 1e3 * size, "active_params": size,
         "z_loss": [[4, 0.01 / size], [9, 0.009 / size]]}
        for size in (1, 10, 100)
    ]  # fmt: skip
    (tmp_path / "grid.json").write_text(json.dumps({"rungs": rungs}))
    assert load([tmp_path / "grid.json"], "z_loss").metric == "z_loss"


def test_runs_can_be_kept_as_a_grid(runs: list[Path], tmp_path: Path) -> None:
    ladder = load(runs[:3], None)
    grid = {"rungs": [rung.to_json(ladder.metric) for rung in ladder.rungs]}
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    kept = load([tmp_path / "grid.json"], None)
    for one, other in zip(ladder.rungs, kept.rungs, strict=True):
        assert one.metrics[ladder.metric] == other.metrics[ladder.metric]
        assert (one.name, one.train_flops, one.tokens) == (
            other.name,
            other.train_flops,
            other.tokens,
        )
        assert one.recipe == other.recipe


def test_a_run_in_progress_is_used_to_its_end_and_extrapolated(
    runs: list[Path], tmp_path: Path
) -> None:
    half = write_run(tmp_path / "d96", 96, steps=20)
    ladder = load([*runs[:3], half], None)
    result = forecast(ladder, find_target(ladder, "1e14"), Model())
    assert list(result.extended) == ["d96"]
    assert result.extended["d96"].progress[0] == pytest.approx(0.55)


def _with(run: Path, to: Path, step: int, **values: float) -> Path:
    """A copy of a run with other values in one record."""
    shutil.copytree(run, to)
    records = read_metrics(to / "metrics.jsonl")
    records[step] |= values
    log = MetricsLog(to / "metrics.jsonl")
    for record in records:
        log.write(record)
    log.close()
    return to


def test_a_number_that_is_not_finite_leaves_out_its_own_point_alone(
    runs: list[Path], tmp_path: Path
) -> None:
    bad = _with(runs[2], tmp_path / "d64", 6, grad_norm=float("nan"), loss=float("inf"))
    ladder = load([*runs[:2], bad], None)
    assert ladder.rungs[2].metrics[METRIC] == load(runs[:3], None).rungs[2].metrics[METRIC]
    for name in ("grad_norm", "loss"):
        assert len(ladder.rungs[2].metrics[name][0]) == STEPS - 1
    assert find_run(bad, "", METRIC) == ladder.rungs[2]
    with pytest.raises(MarinError, match="rung d64, loss: the value at step 6 is inf; drop that"):
        load([*runs[:2], bad], "loss")
    with pytest.raises(MarinError, match="rung d64, loss: the value at step 6 is inf; drop that"):
        find_run(bad, "", "loss")


def test_a_folder_that_is_no_run_is_named(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(MarinError, match=r"plan\.json: No such file"):
        load([*runs[:2], tmp_path], None)


def test_exported_runs_are_the_same_rungs(runs: list[Path], tmp_path: Path) -> None:
    exports = []
    for run in runs[:3]:
        records = read_metrics(run / "metrics.jsonl")
        history = [{"_step": record.pop("step"), **record} for record in records]
        config = {key: {"value": value} for key, value in settings(run).items()}
        exports.append(tmp_path / f"{run.name}.json")
        exports[-1].write_text(json.dumps({"name": run.name, "config": config, "history": history}))
    assert _plain(load(exports, None)) == _plain(load(runs[:3], None))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


def mirror(run: Path, lines: list[str], config: dict[str, Any], **changes: Any) -> None:
    """Mirrors a run whose metrics are `lines` so far."""
    run.mkdir(exist_ok=True)
    (run / "metrics.jsonl").write_text("".join(lines))
    order = {"id": "a", "name": "d16", "group": "g", "project": "p", "start": 0, "history": "one"}
    order["offset"] = 0
    assert WandbMirror(run, {**order, "config": config, **changes}).close()


@pytest.mark.usefixtures("offline")
def test_the_mirrors_offline_files_are_the_same_rung_over_a_restart(
    runs: list[Path], tmp_path: Path
) -> None:
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    run = tmp_path / "d16"
    for end in (25, STEPS):
        mirror(run, lines[:end], settings(runs[0]))
    folder = run / "wandb"
    assert is_wandb(folder)
    assert len(list(folder.glob("offline-run-*"))) == 2
    ladder = load([folder, *runs[1:3]], None)
    assert _plain(ladder) == _plain(load(runs[:3], None))
    assert read_wandb(folder).name == "d16"


@pytest.mark.usefixtures("offline")
def test_steps_that_were_trained_again_with_other_data_are_what_wandb_files_say(
    runs: list[Path], tmp_path: Path
) -> None:
    lines = (runs[0] / "metrics.jsonl").read_text().splitlines(keepends=True)
    undone = [json.dumps(json.loads(line) | {"loss": 9.0, "gone": 1}) + "\n" for line in lines]
    run = tmp_path / "d16"
    mirror(run, lines[:20] + undone[20:25], settings(runs[0]))
    mirror(run, lines, settings(runs[0]), start=20, history="two")
    found = read_wandb(run / "wandb")
    assert found.name == "d16"
    assert not any("gone" in record for record in found.history)
    assert _plain(load([run / "wandb", *runs[1:3]], None)) == _plain(load(runs[:3], None))


@pytest.mark.parametrize("content", [b"", b"other", b":W&B\xe1\xbe\x00\x00\x00"])
def test_a_file_that_is_not_of_wandb_or_cut_off_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run-a.wandb"
    path.write_bytes(content)
    with pytest.raises(MarinError, match=r"run-a\.wandb: (not a file of W&B|no plan)"):
        find_run(path, "", "loss")


def _record(**fields: Any) -> bytes:
    """A file of W&B with one record of a run's history, of (key, JSON) pairs."""
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    record = messages.Record()
    for key, value in fields.items():
        record.history.item.add(key=key, value_json=value)
    return _chunk(record.SerializeToString())


def _chunk(data: bytes) -> bytes:
    return b":W&B\xe1\xbe\x00" + struct.pack("<IHB", 0, len(data), 1) + data


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (_chunk(b"\xff" * 20), "damaged: "),
        (_record(loss="{"), "damaged: 'loss' is no JSON"),
        (_record(_step="NaN", loss="1"), "damaged: _step is nan; restore the file"),
        (_record(_step='"a"', loss="1"), "damaged: _step is 'a'; restore the file"),
    ],
    ids=["record", "value", "step", "text as step"],
)
def test_a_damaged_file_of_wandb_is_refused_in_one_line(
    tmp_path: Path, content: bytes, says: str
) -> None:
    path = tmp_path / "run-a.wandb"
    path.write_bytes(content)
    with pytest.raises(MarinError) as refusal:
        find_run(path, "", "loss")
    assert str(refusal.value).startswith(f"{path}: {says}")
    assert "\n" not in str(refusal.value)


def _plain(ladder: Ladder) -> list[Any]:
    """What is compared of a ladder's rungs."""
    shown = ("loss", METRIC, "drop_fraction")
    return [
        (rung.name, rung.train_flops, rung.tokens, rung.recipe, [rung.metrics[m] for m in shown])
        for rung in ladder.rungs
    ]
