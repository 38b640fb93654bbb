"""`marin ladder`: every command's answer, and one line with exit code 2 for every refusal."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ladder import write_run

import marin.ladder
from marin.cli import main

PUBLISHED = Path(marin.ladder.__file__).parent / "presets" / "published.json"
Marin = Callable[..., tuple[int, str, str]]


@pytest.fixture
def marin_ladder(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Marin:
    """Runs the command in this process: exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["marin", "ladder", *map(str, arguments)])
        code: Any = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("runs")
    return [write_run(root / f"d{hidden}", hidden) for hidden in (16, 32, 64)]


def test_plan_prints_the_published_ladder_and_writes_configurations(
    marin_ladder: Marin, tmp_path: Path
) -> None:
    code, out, err = marin_ladder("plan", "--out", tmp_path / "rungs", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert [rung["steps"] for rung in answer["rungs"]] == [11_420, 15_276, 15_128, 20_072, 390_251]
    assert 0.003 < answer["ladder_share"] < 0.015
    assert all(Path(path).is_file() for path in answer["configs"])
    code, out, err = marin_ladder("plan")
    assert (code, err) == (0, "")
    assert "d6144" in out
    assert "of it" in out


def test_fit_and_forecast_print_tables(marin_ladder: Marin) -> None:
    code, out, err = marin_ladder("fit", PUBLISHED, "--floor", 1.5)
    assert (code, err) == (0, "")
    assert "1.5000 (given) + A FLOPs^-" in out
    code, out, err = marin_ladder("forecast", PUBLISHED, "--target", "d6144", "--floor", 1.5)
    assert (code, err) == (0, "")
    assert "90 % interval" in out
    assert "d2048 ended early; extrapolated" in out


def test_forecast_answers_with_the_promised_keys(marin_ladder: Marin, runs: list[Path]) -> None:
    code, out, err = marin_ladder("forecast", *runs, "--target", "1e13,1e6,1e6", "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert {len(answer[key]) for key in ("progress", "loss", "low", "high")} == {20}
    assert answer["final"].keys() >= {"loss", "low", "high"}
    assert answer["progress"][-1] == 1.0
    assert {test["protocol"] for test in answer["backtests"]} == {"later half"}


def test_a_registered_run_is_watched_and_drawn(
    marin_ladder: Marin, runs: list[Path], tmp_path: Path
) -> None:
    big = write_run(tmp_path / "d96", 96)
    registration = tmp_path / "forecast.md"
    from marin.ladder.sources import find_run

    rung = find_run(big, "", "loss")
    figures = f"{rung.train_flops},{rung.tokens},{rung.active_params}"
    code, out, err = marin_ladder(
        "register", *runs, "--target", figures, "--out", registration, "--tolerance", 0.02
    )
    assert (code, err) == (0, "")
    assert out.strip() == str(registration)
    assert "xxh3" in registration.read_text()
    code, out, err = marin_ladder("watch", big, "--against", registration, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert (answer["verdict"], answer["within_tolerance"]) == ("on track", True)
    code, out, err = marin_ladder("watch", big, "--against", registration)
    assert (code, err) == (0, "")
    assert "d96: on track" in out
    page = tmp_path / "ladder.html"
    code, out, err = marin_ladder(
        "report", *runs, "--target", figures, "--out", page,
        "--watch", big, "--against", registration,
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert "on track" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "{tmp}/none.toml"], "none.toml: No such file"),
        (["fit", "{grid}", "{grid}"], "published.json: not a run"),
        (["fit", "{run0}", "{run1}"], "2 rungs with evaluations (d16, d32); a fit needs"),
        (["fit", "{run0}", "{run1}", "{grid}"], "published.json: not a run"),
        (["fit", "{tmp}/none.json"], "none.json: No such file"),
        (["fit", "{grid}", "--metric", "bpb"], "metric bpb is missing in d768"),
        (["fit", "{falling}"], "steps must rise"),
        (["fit", "{mixed}"], "mixed recipes: seq_len"),
        (["forecast", "{grid}", "--target", "d2048"], "has evaluations"),
        (["forecast", "{grid}", "--target", "1e21"], "inside the fitted range"),
        (["forecast", "{grid}", "--target", "d9"], "expected a rung without evaluations (d6144)"),
        (["forecast", "{grid}", "--target", "d6144", "--floor", "3"], "--floor 3"),
        (["register", "{grid}", "--target", "d6144", "--out", "{grid}"], "never overwritten"),
        (["register", "{grid}", "--target", "d6144", "--out", "{tmp}/f.md", "--tolerance", "2"],
         "--tolerance 2"),
        (["watch", "{run0}", "--against", "{grid}"], "no JSON block; expected a registration"),
        (["report", "{grid}", "--target", "d6144", "--watch", "{run0}"], "go together"),
    ],
)  # fmt: skip
def test_every_refusal_is_one_line_and_exit_code_2(
    marin_ladder: Marin, runs: list[Path], tmp_path: Path, arguments: list[str], says: str
) -> None:
    places = {"tmp": tmp_path, "grid": PUBLISHED, "run0": runs[0], "run1": runs[1]}
    for name, change in (("falling", _falling), ("mixed", _mixed)):
        grid = json.loads(PUBLISHED.read_text())
        change(grid["rungs"])
        places[name] = tmp_path / f"{name}.json"
        places[name].write_text(json.dumps(grid))
    code, out, err = marin_ladder(*(argument.format(**places) for argument in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("marin: ")
    assert says in err
    assert err.count("\n") == 1


def _falling(rungs: list[dict[str, Any]]) -> None:
    curve = rungs[0]["dropless_paloma_macro_loss"]
    curve[3], curve[4] = curve[4], curve[3]


def _mixed(rungs: list[dict[str, Any]]) -> None:
    rungs[1]["seq_len"] = 8192
