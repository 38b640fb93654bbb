"""`marin mix` from the outside."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from marin.cli.app import app
from marin.engine import write_manifest
from marin.errors import MarinError
from marin.mixture import Schedule, load
from marin.mixture.epochs import warnings

PRESET = "harrier-2026.08.18"
CASE = str(Path(__file__).parents[1] / "cases" / "mixture" / "ten_rows.toml")


def run(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["mix", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_check_prints_the_published_facts() -> None:
    answer = json.loads(run("check", PRESET, "--json"))
    assert (answer["cells"], answer["available_tokens"]) == (200, 23_106_103_007_622)
    assert [phase["tokens"] for phase in answer["phases"]] == [15 * 10**12, 3_750_000_000_000]
    assert answer["max_epochs"]["cell"] == "c12q4"
    assert answer["max_epochs"]["epochs"] == pytest.approx(2.093, abs=5e-4)
    assert answer["warnings"]


def test_check_refuses_an_exceeded_cap_and_passes_with_a_policy() -> None:
    with pytest.raises(MarinError, match="cells a exceed the cap"):
        run("check", CASE)
    rows = ("--rows", "--row-length", "0:64", "--batch-tokens", 640)
    answer = json.loads(run("check", CASE, "--exhaustion", "repeat", *rows, "--json"))
    assert answer["quotas"]["worst_at_boundaries"]["distance"] <= 1.5


def test_plan_writes_a_schedule_and_a_ledger_that_add_up(tmp_path: Path) -> None:
    out, ledger = tmp_path / "schedule.json", tmp_path / "ledger.parquet"
    lengths = ("--row-length", "0:64", "--row-length", "0.75:128", "--batch-tokens", 640)
    policy = ("--exhaustion", "drop-and-renormalize")
    answer = json.loads(
        run("plan", CASE, "--out", out, "--ledger", ledger, *lengths, *policy, "--json")
    )
    schedule = Schedule.from_json(json.loads(out.read_text()))
    assert schedule.fingerprint == answer["fingerprint"]
    table = pq.read_table(ledger)
    assert sum(table["tokens"].to_pylist()) == schedule.tokens == 12_800
    assert sum(table["rows"].to_pylist()) == schedule.rows
    last = [row for row in table.to_pylist() if row["run"] == len(schedule.runs) - 1]
    assert {row["cell"]: row["epochs_so_far"] for row in last}["a"] == 1.0

    revised = tmp_path / "revised.json"
    run("plan", CASE, "--out", revised, "--revise", out, "--step", 5, "--horizon", 9600)
    again = Schedule.from_json(json.loads(revised.read_text()))
    assert [revision.step for revision in again.revisions] == [0, 5]
    assert again.tokens == 9600


def test_a_revision_takes_what_is_given_and_keeps_the_rest(tmp_path: Path) -> None:
    out, revised = tmp_path / "schedule.json", tmp_path / "revised.json"
    lengths = ("--row-length", "0:64", "--row-length", "0.75:128", "--batch-tokens", 640)
    run("plan", CASE, "--out", out, *lengths, "--exhaustion", "repeat", "--seed", 3)

    def stages(*options: object) -> list[tuple[float, int, int]]:
        run("plan", CASE, "--out", revised, "--revise", out, "--step", 5, *options)
        last = Schedule.from_json(json.loads(revised.read_text())).revisions[-1]
        return [(stage.start, stage.seq_len, stage.batch_size) for stage in last.stages]

    assert stages() == [(0.0, 64, 10), (0.75, 128, 5)]
    assert stages("--batch-tokens", 1280) == [(0.0, 64, 20), (0.75, 128, 10)]
    assert stages("--row-length", "0:320") == [(0.0, 320, 2)]
    assert stages("--row-length", "0:4096", "--batch-tokens", 4096) == [(0.0, 4096, 1)]
    # What holds at the step stays, not what a later revision, which this one replaces, had.
    later = ("--revise", out, "--step", 9, "--batch-tokens", 1280)
    run("plan", CASE, "--out", tmp_path / "later.json", *later)
    out = tmp_path / "later.json"
    assert stages("--row-length", "0:320") == [(0.0, 320, 2)]
    for option, value in (("--seed", 3), ("--exhaustion", "repeat"), ("--simulate", 99_999)):
        with pytest.raises(MarinError, match=f"^{option}: a revision keeps what its schedule has"):
            stages(option, value)
    with pytest.raises(MarinError, match="horizon 0 tokens, expected more than 0"):
        stages("--horizon", 0)
    uneven = json.loads(out.read_text())
    uneven["revisions"][0]["stages"][1]["batch_size"] = 10
    out.write_text(json.dumps(uneven))
    with pytest.raises(MarinError, match=r"hold \[640, 1280\] tokens; add --batch-tokens"):
        stages("--row-length", "0:64")


def test_plan_refuses_a_ledger_that_is_no_parquet_and_a_run_shorter_than_a_batch(
    tmp_path: Path,
) -> None:
    out = tmp_path / "x.json"
    with pytest.raises(MarinError, match=r"--ledger l1\.json: it is written as Parquet"):
        run("plan", CASE, "--out", out, "--ledger", "l1.json")
    batch = r"half a batch of 46,137,344 tokens; .*--batch-tokens, 46,137,344 by default"
    with pytest.raises(MarinError, match=f"a horizon of 12,800 tokens is shorter than {batch}"):
        run("plan", CASE, "--out", out, "--exhaustion", "repeat")
    assert list(tmp_path.iterdir()) == []


def test_a_mixture_is_no_schedule_and_a_schedule_no_mixture(tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.json"
    sizes = ("--row-length", "0:64", "--batch-tokens", 640, "--exhaustion", "repeat")
    run("plan", CASE, "--out", schedule, *sizes)
    with pytest.raises(MarinError, match=r"schedule.json: a schedule, expected a mixture: the fi"):
        run("check", schedule)
    mixture = tmp_path / "mixture.json"
    mixture.write_text(json.dumps(load(CASE).to_json()))
    store = tmp_path / "store"
    store.mkdir()
    write_manifest(store, "store", parameters={}, inputs={}, rows={})
    with pytest.raises(MarinError, match=r"mixture.json: a mixture, expected a schedule; marin mi"):
        app(["pack", str(store), "--schedule", str(mixture)], standalone_mode=False)


def test_check_warns_of_a_cell_repeated_often() -> None:
    spec = replace(load(CASE), epoch_cap=None)
    assert not any("repeated" in line for line in warnings(spec))
    spec = replace(spec, phases=tuple(replace(p, tokens=p.tokens * 10) for p in spec.phases))
    (line,) = (line for line in warnings(spec) if "repeated" in line)
    assert line == (
        "cells a are repeated more than 16 times, most of all a with 50 epochs; "
        "epoch_cap in the mixture limits it"
    )


def test_rebase_writes_a_mixture_for_the_store_that_check_accepts(tmp_path: Path) -> None:
    summary = {"cells": {"a": {"tokens": 6400, "documents": 9}, "b": {"tokens": 70_000}}}
    store = tmp_path / "store"
    store.mkdir()
    write_manifest(store, "store", parameters={}, inputs={}, rows={}, summary=summary)
    with pytest.raises(MarinError, match=r"a 640 -> 6400 tokens.*marin mix rebase"):
        run("check", CASE, "--store", store, "--exhaustion", "repeat")
    out = tmp_path / "new.json"
    run("rebase", CASE, store, "--out", out)
    answer = json.loads(run("check", out, "--store", store, "--json"))
    assert answer["max_epochs"] == {"cell": "a", "epochs": 0.5}
    assert answer["warnings"] == []

    run("rebase", CASE, store, "--out", out)  # the same again
    out.write_text(changed := out.read_text().replace("0.", "0.0", 1))
    for target, message in ((out, "holds something else"), (CASE, "would overwrite")):
        with pytest.raises(MarinError, match=message):
            run("rebase", CASE, store, "--out", target)
    with pytest.raises(MarinError, match="would overwrite or lie in"):
        run("rebase", CASE, store, "--out", store / "new.json")
    assert out.read_text() == changed


def test_show_lists_cells_and_plots(tmp_path: Path) -> None:
    plot = tmp_path / "cells.svg"
    answer = json.loads(run("show", CASE, "--plot", plot, "--json"))
    assert {cell["cell"]: cell["total_epochs"] for cell in answer["cells"]}["a"] == 5.0
    assert plot.stat().st_size > 1000
    changes = json.loads(run("show", CASE, "--against", CASE, "--json"))
    assert all(change["before"] == change["after"] for change in changes["by_cell"])
    assert "By quality" in run("show", PRESET)


def test_plan_overwrites_no_input_and_no_file_of_another_kind(tmp_path: Path) -> None:
    mixture, out, notes = (tmp_path / name for name in ("mixture.toml", "out.json", "notes.json"))
    mixture.write_text(Path(CASE).read_text())
    notes.write_text('{"mine": 1}')
    shape = ("--row-length", "0:64", "--batch-tokens", 640, "--exhaustion", "repeat")
    for target, message in (
        (mixture, "would overwrite"),
        (notes, r"notes\.json: exists and is no schedule"),
        (tmp_path, "a folder"),
        (tmp_path / "nodir" / "x.json", "nodir is no folder"),
    ):
        with pytest.raises(MarinError, match=message):
            run("plan", mixture, "--out", target, *shape)
    for target, message in ((mixture, "would overwrite"), (notes, "is no ledger")):
        with pytest.raises(MarinError, match=message):
            run("plan", mixture, "--out", out, "--ledger", target, *shape)
    with pytest.raises(MarinError, match="is no plot"):
        run("show", mixture, "--plot", notes)
    assert not out.exists()
    assert mixture.read_text() == Path(CASE).read_text()
    assert notes.read_text() == '{"mine": 1}'

    ledger = tmp_path / "ledger.parquet"
    for _ in range(2):
        run("plan", mixture, "--out", out, "--ledger", ledger, *shape)
    with pytest.raises(MarinError, match="would overwrite"):
        run("plan", mixture, "--out", out, "--revise", out, "--step", 1)


def test_names_are_no_markup(tmp_path: Path) -> None:
    name = "odd [/] [bold"
    value = {
        "name": name,
        "phases": [{"name": "[/x]", "tokens": 10**6, "weights": {"[b]": 1.0}}],
        "available_tokens": {"[b]": 10**6},
    }
    path = tmp_path / "odd [bold].json"
    path.write_text(json.dumps(value))
    assert name in run("check", path, "--rows", "--batch-tokens", 8192)
    assert "[b]" in run("show", path)
    assert name in run("show", path, "--against", path)
    out = tmp_path / "[b].json"
    assert name in run("plan", path, "--out", out, "--batch-tokens", 8192)


@pytest.mark.parametrize("command", [["mix", "check", PRESET, "--rows"], ["pack", ".", "--verify"]])
def test_a_negative_number_of_threads_is_refused(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--threads", "-1"])
    assert result.exit_code == 2
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize("key", ["name", "phase"])
def test_half_a_character_is_refused(tmp_path: Path, key: str) -> None:
    phase = {"name": "one", "tokens": 10**6, "weights": {"a": 1.0}}
    value = {"name": "half", "phases": [phase], "available_tokens": {"a": 10**6}}
    (value if key == "name" else phase)["name"] = "\udc80"
    path = tmp_path / "half.json"
    path.write_text(json.dumps(value))
    with pytest.raises(MarinError, match="expected text"):
        run("check", path)
