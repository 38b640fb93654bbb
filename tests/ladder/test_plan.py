"""The plan of the published ladder, and of others."""

import json
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from marin.cli.app import app
from marin.errors import MarinError
from marin.ladder import Ladder
from marin.ladder.plan import plan, write_configs
from marin.train import load_config

MUONH_PEAKS = (0.0158, 0.0144, 0.0149, 0.0134, 0.0033)


def test_the_default_plan_is_the_published_table(published: Ladder) -> None:
    planned = [rung.answer() for rung in plan()]
    for rung, row, peak in zip(planned, published.rungs, MUONH_PEAKS, strict=True):
        assert rung["name"] == row.name
        assert rung["steps"] == row.steps
        assert rung["tokens"] == row.tokens
        assert rung["batch"] == row.figures["batch_sequences"]
        assert rung["layers"] == row.figures["layers"]
        assert rung["train_flops"] == pytest.approx(row.train_flops, rel=0.05)
        assert rung["muonh_peak"] == pytest.approx(peak, abs=5.1e-5)
        assert rung["active_params"] == pytest.approx(row.active_params, rel=0.03)
    assert 0.003 < sum(rung["share"] for rung in planned[:-1]) < 0.015


HERO = """
[ladder]
batch = 64
seq_len = 512
tokens_per_parameter = 100
[model]
preset = "tiny"
hidden = 256
heads = 16
kv_local = 4
kv_global = 2
layers = 12
"""


def test_another_hero_gets_rungs_of_its_own_recipe(tmp_path: Path) -> None:
    path = tmp_path / "hero.toml"
    path.write_text(HERO)
    rungs = plan(path)
    assert [rung.model.heads for rung in rungs] == [2, 3, 4, 5, 16]
    assert len({(r.model.experts, r.model.top_k, r.model.head_dim, r.seq_len) for r in rungs}) == 1
    assert all(a.train_flops < b.train_flops for a, b in pairwise(rungs))
    for rung in rungs:
        assert rung.tokens == pytest.approx(100 * rung.answer()["active_params"], rel=0.05)
        assert rung.model.heads % rung.model.kv_local == 0
        assert rung.model.kv_local % rung.model.kv_global == 0


def test_configurations_are_ready_to_train(tmp_path: Path) -> None:
    rungs = plan()
    paths = write_configs(rungs, tmp_path / "rungs")
    for rung, path in zip(rungs, paths, strict=True):
        config = load_config(path)
        assert config.model == rung.model
        assert (config.shards, config.run) == (path.parent / "shards", path.parent / "run")
    with pytest.raises(MarinError, match="exists"):
        write_configs(rungs, tmp_path / "rungs")


def test_each_rung_has_the_command_that_makes_its_shards(tmp_path: Path) -> None:
    rung = plan()[0]
    folder = write_configs((rung,), tmp_path)[0].parent
    calls = tmp_path / "marin"
    calls.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\nmkdir -p {folder}/packed/shards-1\n'
    )
    calls.chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    script = str(folder / "shards.sh")
    subprocess.run(["sh", script, "harrier-2026.08.18", "store"], check=True, env=path)
    assert (folder / "shards").resolve() == folder / "packed" / "shards-1"
    planning, packing = (tmp_path / "calls").read_text().splitlines()
    assert packing == f"pack store --schedule {folder}/schedule.json --out {folder}/packed"
    answer = CliRunner().invoke(app, [*planning.split(), "--json"])
    assert answer.exit_code == 0, answer.output
    runs = json.loads(answer.stdout)["runs"]
    assert {(run["batch_size"], run["seq_len"]) for run in runs} == {(rung.batch, rung.seq_len)}
    assert sum(run["steps"] for run in runs) == rung.steps


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected a table"),
        ("model = 3", "expected a table"),
        ("[model", "not valid TOML"),
        ("[model]\npreset = 'tiny'\n[ladder]\nwidth = 3", "ladder.width: unknown key"),
        ("[model]\npreset = 'tiny'\n[ladder]\nbatch = 0", "ladder.batch is 0"),
        ("[model]\npreset = 'tiny'\n[ladder]\nbatch = 1.5", "ladder.batch is 1.5"),
        ("[model]\npreset = 'd768'\n[ladder]\ntokens_per_parameter = 1e308", "is 1e+308; expected"),
        (f"[model]\npreset = 'd768'\n[ladder]\nseq_len = 1{'0' * 30}", "seq_len is 1000"),
        ("[model]\npreset = 'tiny'", "4 heads leave"),
        ("[model]\npreset = 'none'", "none"),
    ],
)
def test_a_hero_that_cannot_be_planned_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "hero.toml"
    path.write_text(text)
    with pytest.raises(MarinError) as refusal:
        plan(path)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)
