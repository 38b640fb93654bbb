"""`marin ladder` from the outside: one object on stdout, or one line on stderr."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def _marin(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "marin.cli", "ladder", *arguments],
        capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip


def test_forecast_answers_with_the_promised_keys(published_path: Path) -> None:
    done = _marin("forecast", str(published_path), "--target", "d6144", "--floor", "1.5", "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    lengths = {len(answer[key]) for key in ("progress", "loss", "low", "high")}
    assert lengths == {20}
    assert answer["final"].keys() >= {"loss", "low", "high"}
    assert answer["progress"][-1] == 1.0
    assert {test["protocol"] for test in answer["backtests"]} >= {"largest", "later half"}


@pytest.mark.parametrize(
    "arguments", [["forecast", "{grid}", "--target", "d2048"], ["fit", "{grid}", "{grid}"]]
)
def test_mistakes_are_one_line(published_path: Path, arguments: list[str]) -> None:
    done = _marin(*(argument.format(grid=published_path) for argument in arguments))
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("marin: ")
    assert done.stderr.count("\n") == 1
