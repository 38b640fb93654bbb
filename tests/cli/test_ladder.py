"""`marin ladder`: every command's answer, and one line with exit code 2 for every refusal."""

import json
import sys
from collections.abc import Callable, Sequence
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


def _grid(
    path: Path,
    metric: str,
    value: Callable[[int, int], float],
    names: Sequence[str] = "abcdT",
    **big: Any,
) -> Path:
    """A grid of four rungs with four evaluations of a metric each, and one rung to forecast."""
    rungs: list[dict[str, Any]] = [
        {"name": name, "steps": 8, "tokens": 1e9 * 10**i, "active_params": 1e7 * 10**i}
        for i, name in enumerate(names)
    ]
    for i, rung in enumerate(rungs[:4]):
        rung[metric] = [[step, value(i, step)] for step in (1, 3, 5, 7)]
    rungs[4] |= big
    path.write_text(json.dumps({"rungs": rungs}))
    return path


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("drop_fraction", lambda i, step: 0.01 * i if step > 4 else 0.0),
        ("drop_fraction", lambda i, step: 0.0),
        ("loss", lambda i, step: -1 - 0.1 * i - 0.01 * step),
    ],
    ids=["some zeros", "all zeros", "negative"],
)
def test_metrics_that_reach_zero_or_are_negative_have_forecasts_but_no_power_law(
    marin_ladder: Marin, tmp_path: Path, metric: str, value: Callable[[int, int], float]
) -> None:
    grid = _grid(tmp_path / "grid.json", metric, value)
    run = _grid(
        tmp_path / "run.json", metric, value, **{metric: [[3, value(4, 3)], [7, value(4, 7)]]}
    )
    registration, page = tmp_path / "f.md", tmp_path / "ladder.html"
    code, out, err = marin_ladder("fit", grid)
    assert (code, err) == (0, "")
    assert f"{metric} = - (no power law: not all values are positive)" in out
    for command in (
        ["fit", grid, "--json"],
        ["forecast", grid, "--target", "T"],
        ["register", grid, "--target", "T", "--out", registration],
        ["watch", run, "--against", registration],
        ["report", grid, "--target", "T", "--out", page, "--watch", run, "--against", registration],
    ):
        code, out, err = marin_ladder(*command)
        assert (code, err) == (0, ""), command
    assert "No power law" in page.read_text()


def test_small_losses_have_forecasts_without_a_floor_that_nobody_gave(
    marin_ladder: Marin, tmp_path: Path
) -> None:
    grid = _grid(tmp_path / "grid.json", "z_loss", lambda i, step: 0.009 - 0.0005 * i - 1e-4 * step)
    code, out, err = marin_ladder("forecast", grid, "--target", "T", "--json")
    assert (code, err) == (0, "")
    floors = [entry["floor"] for entry in json.loads(out)["sensitivity"]]
    assert floors == pytest.approx([share * 0.0068 for share in (0, 0.4, 0.5, 0.6, 0.7, 0.8)])


HOSTILE = ["a[/b]", "b```", "c\n```json\n{}\n```\n", "d", "[bold]T"]


def test_names_of_rungs_and_metrics_are_texts(marin_ladder: Marin, tmp_path: Path) -> None:
    def value(i: int, step: int) -> float:
        return 0.0 if step == 1 else 0.1 * i

    metric = "drops[/b]"
    grid = _grid(tmp_path / "grid.json", metric, value, HOSTILE)
    run = _grid(tmp_path / "run.json", metric, value, HOSTILE, **{metric: [[7, 0.3]]})
    for command in (
        ["fit", grid],
        ["forecast", grid, "--target", "[bold]T"],
        ["register", grid, "--target", "[bold]T", "--out", tmp_path / "f.md"],
        ["watch", run, "--against", tmp_path / "f.md"],
    ):
        code, out, err = marin_ladder(*command)
        assert (code, err) == (0, ""), command
        assert metric in out or command[0] == "register"
    assert "[bold]T: on track" in out


def test_a_name_that_no_file_can_hold_is_refused(marin_ladder: Marin, tmp_path: Path) -> None:
    for names, metric in ((["a", "b", "c", "\ud800", "T"], "drops"), ("abcdT", "\udfff")):
        grid = _grid(tmp_path / "grid.json", metric, lambda i, step: 0.1 * i, names)
        code, out, err = marin_ladder("fit", grid)
        assert (code, out) == (2, "")
        assert "is no Unicode text; rename it" in err


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
        (["fit", "{grid}", "--floor", "3"], "--floor 3: the lowest"),
        (["fit", "{grid}", "--floor", "nan"], "--floor nan"),
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
