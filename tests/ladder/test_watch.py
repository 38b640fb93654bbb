"""Registrations, and runs that are held against them."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support.malformed import mutations, refusal

from marin._native import xxh3_file
from marin.errors import MarinError
from marin.ladder import Ladder, Model, Rung, find_target, fit_law, load_grid
from marin.ladder.page import ladder_page
from marin.ladder.register import read_registration, register
from marin.ladder.sources import find_run
from marin.ladder.watch import watch

DATE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory, published: Ladder) -> Path:
    folder = tmp_path_factory.mktemp("registered")
    (folder / "grid.json").write_text("{}")
    out = folder / "forecast.md"
    target = find_target(published, "d6144")
    register(
        published, target, Model(floor=1.5), [folder / "grid.json"], out, tolerance=0.01, date=DATE
    )
    return out


def _run(published: Ladder, block: dict[str, Any], change: Callable[[int, float], float]) -> Rung:
    """The forecast itself as a run, with `change` on each of its 20 values."""
    hero = published.rung("d6144")
    assert hero is not None
    forecast = block["forecast"]
    steps = tuple(round(p * hero.steps) - 1 for p in forecast["progress"])
    values = tuple(change(i, value) for i, value in enumerate(forecast["loss"]))
    return replace(hero, metrics={published.metric: (steps, values)})


def test_a_registration_says_what_it_will_be_judged_by(registered: Path) -> None:
    text = registered.read_text()
    block = read_registration(registered)
    assert block["date"] == "2026-01-02T03:04:05Z"
    assert block["rule"] == {"burn_in": 0.1, "persistence": 3}
    assert block["data"] == {"grid.json": xxh3_file(registered.with_name("grid.json"))}
    assert all(word in text for word in ("Hypothesis", "Target", "Tolerance", "Rule", "xxh3"))


def test_a_registration_has_the_checksums_of_the_exports_that_its_grid_names(
    tmp_path: Path, published: Ladder
) -> None:
    rungs = []
    for rung in published.rungs:
        entry = {key: getattr(rung, key) for key in ("name", "tokens", "active_params", "steps")}
        rungs.append(entry | {"train_flops": rung.train_flops})
        if rung.metrics:
            rows = zip(*rung.metrics[published.metric], strict=True)
            text = "\n".join(["step,loss", *(f"{step},{value}" for step, value in rows)])
            (tmp_path / f"{rung.name}.csv").write_text(text)
            rungs[-1]["history"] = f"{rung.name}.csv"
    grid = tmp_path / "grid.json"
    grid.write_text(json.dumps({"rungs": rungs}))
    ladder = load_grid(grid)
    block = register(
        ladder, find_target(ladder, "d6144"), Model(floor=1.5), [grid], tmp_path / "f.md",
        tolerance=0.01,
    )  # fmt: skip
    files = ["grid.json", "d768.csv", "d1024.csv", "d1536.csv", "d2048.csv"]
    assert block["data"] == {name: xxh3_file(tmp_path / name) for name in files}


def test_a_registration_is_never_overwritten(registered: Path, published: Ladder) -> None:
    before = registered.read_bytes()
    with pytest.raises(MarinError, match="never overwritten"):
        register(
            published, find_target(published, "d6144"), Model(), [], registered, tolerance=0.01
        )
    assert registered.read_bytes() == before


@pytest.mark.parametrize("tolerance", [0.0, 1.0, -1.0, float("nan")])
def test_a_tolerance_outside_of_its_range_is_refused(
    published: Ladder, tmp_path: Path, tolerance: float
) -> None:
    with pytest.raises(MarinError, match="--tolerance"):
        register(
            published, find_target(published, "d6144"), Model(), [], tmp_path / "f.md",
            tolerance=tolerance,
        )  # fmt: skip


def test_a_registration_whose_values_are_of_other_kinds_is_one_line(
    registered: Path, published: Ladder, tmp_path: Path
) -> None:
    text = registered.read_text()
    head, block, tail = re.split(r"(?s)(?<=```json\n)(.*?)(?=```)", text, maxsplit=1)
    path = tmp_path / "registered.md"
    run = _run(published, json.loads(block), lambda _, value: value)

    def judged() -> None:
        registration = read_registration(path)
        if registration["metric"] in run.metrics:
            watch(run, registration)

    messages = []
    for changed in mutations(json.loads(block)):
        path.write_text(head + json.dumps(changed) + tail)
        messages.append(refusal(judged))
    refused = [message for message in messages if message is not None]
    assert len(refused) > 100
    assert all(message.startswith(f"{path}: ") for message in refused)


def test_the_forecast_itself_is_on_track(registered: Path, published: Ladder) -> None:
    block = read_registration(registered)
    verdict = watch(_run(published, block, lambda _, value: value), block)
    assert verdict["verdict"] == "on track"
    assert verdict["finished"]
    assert verdict["within_tolerance"]
    assert verdict["differences"] == []


@pytest.mark.parametrize(("outcome", "within"), [(0.0, True), (0.009, True), (0.011, False)])
def test_a_forecast_whose_band_reaches_zero_has_an_absolute_tolerance(
    registered: Path, published: Ladder, outcome: float, within: bool
) -> None:
    block = read_registration(registered)
    run = _run(published, block, lambda *_: outcome)
    block["forecast"] |= {"loss": [0.0] * 20, "low": [0.0] * 20, "high": [0.05] * 20}
    answer = watch(run, block)
    assert (answer["verdict"], answer["error"], answer["difference"]) == ("on track", None, outcome)
    assert answer["within_tolerance"] is within


def test_leaving_the_band_for_good_is_off_track(registered: Path, published: Ladder) -> None:
    block = read_registration(registered)
    run = _run(published, block, lambda i, value: value + (0.2 if i >= 10 else 0))
    verdict = watch(run, block)
    assert verdict["verdict"] == "off track"
    assert verdict["since"] == pytest.approx(0.55, abs=1e-3)
    assert verdict["within_tolerance"] is False


def test_two_bad_evaluations_or_a_bad_start_are_not_off_track(
    registered: Path, published: Ladder
) -> None:
    block = read_registration(registered)
    run = _run(published, block, lambda i, value: value + (0.2 if i in (0, 1, 10, 11) else 0))
    assert watch(run, block)["verdict"] == "on track"


@pytest.mark.parametrize(("first", "last"), [(10, 20), (0, 12), (10, 12)])
def test_what_was_not_forecast_is_not_judged(
    registered: Path, published: Ladder, first: int, last: int
) -> None:
    block = read_registration(registered)
    run = _run(published, block, lambda _, value: value)
    part = {key: block["forecast"][key][first:last] for key in ("progress", "loss", "low", "high")}
    answer = watch(run, block | {"forecast": block["forecast"] | part})
    sides = [entry["side"] for entry in answer["evaluations"]]
    burn_in = ["burn-in"] * (2 - first)
    assert sides[first:last] == [*burn_in, *["inside"] * (last - first - len(burn_in))]
    assert set(sides[:first] + sides[last:]) == {"not forecast"}
    assert answer["verdict"] == "on track"
    if last < len(sides):
        assert answer["finished"]
        assert [answer[key] for key in ("forecast", "error", "within_tolerance")] == [None] * 3
        html = ladder_page(published, fit_law(published, floor=1.5), block["forecast"], answer)
        assert "not forecast" in html.html()


def test_sides_that_alternate_are_not_persistent(registered: Path, published: Ladder) -> None:
    block = read_registration(registered)
    run = _run(published, block, lambda i, value: value + (0.2 if i % 2 else -0.2))
    assert watch(run, block)["verdict"] == "on track"


@pytest.mark.parametrize(
    ("change", "what"),
    [({"recipe": {"seq_len": 65_536}}, "seq_len"), ({"tokens": 9e12}, "tokens")],
)
def test_another_recipe_voids_the_comparison(
    registered: Path, published: Ladder, change: dict[str, Any], what: str
) -> None:
    block = read_registration(registered)
    run = replace(_run(published, block, lambda _, value: value), **change)
    verdict = watch(run, block)
    assert verdict["verdict"] == "void"
    assert [entry["what"] for entry in verdict["differences"]] == [what]


def _logged(rung: Rung, **curves: Callable[[float], float]) -> Rung:
    """The rung with a metric logged at 1,000 steps, each a function of progress."""
    steps = tuple(round(rung.steps * (i + 1) / 1000) - 1 for i in range(1000))
    logged = {
        name: (steps, tuple(value((s + 1) / rung.steps) for s in steps))
        for name, value in curves.items()
    }
    return replace(rung, metrics={**rung.metrics, **logged})


def _spike(progress: float) -> float:
    """All of it in the first step, 4 % from 80 % on."""
    return 1.0 if progress <= 0.001 else 0.04 if progress > 0.8 else 0.0


@pytest.mark.parametrize(
    ("name", "value", "end", "verdict", "named"),
    [
        ("drop_fraction", 0.09, 1.0, "on track", []),
        ("drop_fraction", 0.11, 1.0, "void", ["drop_fraction"]),
        ("drop_fraction", 0.09, 0.5, "void", ["drop_fraction"]),
        ("grad_norm", 0.9, 1.0, "on track", []),
        ("grad_norm", 1.1, 1.0, "on track", ["grad_norm"]),
    ],
)
def test_drops_and_gradients_are_judged_at_the_rungs_own_progress(
    published: Ladder, tmp_path: Path, name: str, value: float, end: float, verdict: str,
    named: list[str],
) -> None:  # fmt: skip
    rungs = tuple(
        _logged(rung, drop_fraction=_spike, grad_norm=lambda p: 0.5 if p > 0.001 else 50.0)
        for rung in published.fitted
    )
    ladder = replace(published, rungs=(*rungs, published.rungs[-1]))
    block = register(
        ladder, find_target(published, "d6144"), Model(floor=1.5), [], tmp_path / "f.md",
        tolerance=0.01,
    )  # fmt: skip
    steady = _logged(_run(published, block, lambda _, loss: loss), **{name: lambda _: value})
    kept = range(round(1000 * end))
    curve = tuple(tuple(column[i] for i in kept) for column in steady.metrics[name])
    answer = watch(replace(steady, metrics={**steady.metrics, name: curve}), block)
    assert answer["verdict"] == verdict
    assert [entry["what"] for entry in answer["differences"]] == named


def test_an_older_registration_has_one_number_for_the_whole_run(
    registered: Path, published: Ladder
) -> None:
    block = read_registration(registered) | {"normal": {"drop_fraction": 0.04, "grad_norm": 1.0}}
    run = _run(published, block, lambda _, value: value)
    for dropped, verdict in ((0.05, "on track"), (0.4, "void")):
        run = _logged(run, drop_fraction=lambda _, dropped=dropped: dropped)
        assert watch(run, block)["verdict"] == verdict


COMMITTED = sorted((Path(__file__).parents[2] / "benches" / "results").glob("ladder_small*"))


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda path: path.name)
def test_the_committed_registrations_give_the_committed_outcomes(folder: Path) -> None:
    block = read_registration(folder / "registration.md")
    outcome = json.loads((folder / "outcome.json").read_text())
    found = find_run(folder / "grid.json", outcome["run"], block["metric"])
    assert watch(found, block)["verdict"] == outcome["verdict"]


@pytest.mark.parametrize("text", ["", "# no block", "```json\n{", "```json\n[]\n```"])
def test_what_is_no_registration_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "forecast.md"
    path.write_text(text)
    with pytest.raises(MarinError, match="registration"):
        read_registration(path)


def test_the_page_shows_everything_in_one_file(registered: Path, published: Ladder) -> None:
    block = read_registration(registered)
    verdict = watch(_run(published, block, lambda _, value: value), block)
    html = ladder_page(published, fit_law(published, floor=1.5), block["forecast"], verdict).html()
    assert html.count("<svg") >= 8
    assert all(word in html for word in ("Forecast", "Rungs", "Backtests", "Watch", "on track"))
    assert "<script" not in html
    json.dumps(verdict)
