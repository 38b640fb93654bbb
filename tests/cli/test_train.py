"""`marin train`: one line with exit code 2 for every mistake."""

import sys
from pathlib import Path

import pytest

from marin.cli import main

CONFIG = 'shards = "shards"\nrun = "run"\n[model]\npreset = "tiny"\n'


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["none.toml"], "none.toml: No such file"),
        (["run.toml"], "shards: no such directory"),
        (["run.toml", "--set", "mesh.experts=2"], "mesh.experts: unknown key"),
        (["run.toml", "--set", "evaluation.times=-1"], "evaluation.times = -1"),
        (["run.toml", "--set", "log.peak_flops=0"], "log.peak_flops = 0"),
        (["run.toml", "--processes", "2"], "--processes and --process go together"),
        (["run.toml", "--processes", "2", "--process", "2"], "--process 2: expected a number from"),
        (["resume", "run"], "no config.toml, so it is not a run's directory"),
        (["shorten", "run", "--to", "10"], "no config.toml"),
        (["branch", "run", "--at", "10", "--cooldown", "5"], "no config.toml"),
    ],
)
def test_every_mistake_is_one_line_and_exit_code_2(
    arguments: list[str],
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(CONFIG)
    monkeypatch.setattr(sys, "argv", ["marin", "train", *arguments])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "")
    assert err.startswith("marin: ")
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_help_says_that_a_configuration_starts_a_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["marin", "train", "--help"])
    with pytest.raises(SystemExit):
        main()
    out = " ".join(capsys.readouterr().out.split())
    assert "train [OPTIONS] CONFIG | COMMAND [ARGS]..." in out
    assert "marin train CONFIG starts" in out
