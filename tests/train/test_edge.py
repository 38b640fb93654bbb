"""Configuration files and `--set`."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from marin.errors import MarinError
from marin.train.edge import load_config, write_config

FILE = """
shards = "data/shards-1"
run = "runs/one"
[model]
preset = "tiny"
layers = 2
[mesh]
expert = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(FILE)
    return path


def test_a_file_with_settings_resolves_and_survives_its_own_writing(file: Path) -> None:
    config = load_config(file, ["model.layers=3", "mesh.data=2", "log.project=other run"])
    assert (config.model.layers, config.mesh.devices) == (3, 8)
    assert config.log.project == "other run"
    assert config.shards == file.parent / "data/shards-1"
    write_config(config, file.parent)
    assert load_config(file.parent / "config.toml") == config


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"])))
@example('a\nb\x7f\x01"\\')
def test_any_text_survives_its_writing(file: Path, text: str) -> None:
    config = load_config(file)
    config = replace(config, log=replace(config.log, project=text))
    write_config(config, file.parent)
    assert load_config(file.parent / "config.toml") == config


def test_every_relative_path_is_relative_to_its_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text(
        FILE + '[evaluation]\ntokenizer = "t.json"\n[watch]\nforecast = "../band.json"\n'
    )
    monkeypatch.chdir("/")
    config = load_config(file, ["run=elsewhere"])
    assert config.evaluation.tokenizer == file.parent / "t.json"
    assert config.watch.forecast == file.parent / "../band.json"
    assert config.run == Path("elsewhere")  # as the command line means it


def test_what_is_meant_for_one_start_is_not_kept(file: Path) -> None:
    config = load_config(file, ["stop_at=10", "profile=2"])
    assert (config.stop_at, config.profile) == (10, 2)
    write_config(config, file.parent)
    kept = load_config(file.parent / "config.toml")
    assert (kept.stop_at, kept.profile) == (None, None)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("seed=99999999999999999999", "seed = 9+: expected a whole number from 0"),
        ("rate_scale=inf", "rate_scale = inf: expected a number above 0"),
        ("qk_extension=nan", "qk_extension = nan: expected a number"),
        ("mesh.experts=4", r"mesh\.experts: unknown key"),
        ("steps=4", "steps: unknown key"),
        ("mesh.expert=many", r"mesh\.expert: .*found 'many'"),
        ("mesh.expert=0", r"mesh\.expert = 0"),
        ("model.layers=0", "layers = 0"),
        ("model.preset=huge", "no preset 'huge'"),
        ("model.depth=3", "unknown field 'depth'"),
        ("mesh.expert", "expected key=value"),
        ("checkpoint.every=-1", r"checkpoint\.every = -1"),
        ("shards.a=1", "shards is a value"),
        ("microbatches=2 model.auxiliary_balance=0.1", "that loss is of the whole batch"),
    ],
)
def test_a_wrong_key_or_value_is_named_in_one_line(file: Path, setting: str, message: str) -> None:
    with pytest.raises(MarinError, match=message) as error:
        load_config(file, setting.split())
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_or_not_toml_is_named(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match=r"no\.toml: No such file"):
        load_config(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("a = [")
    with pytest.raises(MarinError, match=r"bad\.toml: not valid TOML"):
        load_config(tmp_path / "bad.toml")
