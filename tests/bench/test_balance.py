"""The verdict of `marin bench balance` on given rates, against runs, and a smoke of the whole."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.compilation import quick_flags
from support.packing import make_schedule, write_store
from support.training import tiny_model
from typer.testing import CliRunner

from marin.bench.balance import BalanceConfig, of_run, read_run
from marin.bench.balance.data import DataRates
from marin.bench.balance.dispatch import DispatchRates, modelled_rates
from marin.bench.balance.verdict import _agreement, balance
from marin.bench.compare import compare
from marin.cli.app import app
from marin.errors import MarinError
from marin.model.presets import preset
from marin.packing import pack, plan
from marin.plan import device
from marin.train.config import MeshShape, TrainConfig
from marin.train.run_directory import RunDirectory
from marin.train.source import open_source

DATA = DataRates(mix=1e9, plan=2e6, pack=1e6, stream_store=2e6, stream_shards=1e7)
LAYER = DispatchRates({"rank": 1e6}, {"local": 1e5})


def verdict(compute: float) -> dict[str, object]:
    gb200 = device("gb200")
    return balance(BalanceConfig(), {4096: DATA}, LAYER, {4096: compute}, gb200)["verdict"]


def test_data_limits_exactly_where_a_device_takes_more_than_its_hosts_cores_stream() -> None:
    cores = device("gb200").cores / device("gb200").node
    assert verdict(0.99 * cores * DATA.stream_shards)["limits"] == "compute"
    limited = verdict(2 * cores * DATA.stream_shards)
    assert limited["limits"] == "data"
    assert limited["expected_data_wait"] == pytest.approx(0.5)
    assert limited["cores_per_node"] == pytest.approx(4 * limited["cores_per_device"])
    assert limited["cores_per_rack"] == pytest.approx(64 * limited["cores_per_device"])


def test_streaming_from_the_store_pays_for_planning_too() -> None:
    assert DATA.from_store == pytest.approx(1e6)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run over 4 devices, about to begin."""
    store = write_store(tmp_path, {"c00q0": [30] * 40})
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 64, 4), (0.5, 128, 2)], 12 * 4 * 64)
    shards = pack(plan(store, schedule, tmp_path), tmp_path)
    mesh = MeshShape(expert=4)
    config = TrainConfig(shards=shards, run=tmp_path / "run", model=tiny_model(), mesh=mesh)
    config.run.mkdir()
    directory = RunDirectory(config.run)
    directory.claim(config)
    directory.curriculum(config, open_source(directory.legs(config)))
    return config.run


def log(run: Path, *records: dict[str, object]) -> None:
    lines = (json.dumps({"step": step, **record}) + "\n" for step, record in enumerate(records))
    (run / "metrics.jsonl").write_text("".join(lines))


@pytest.mark.parametrize(("waited", "limits"), [(0.001, "compute"), (0.5, "data")])
def test_a_run_agrees_when_it_waited_as_the_verdict_says(
    run: Path, waited: float, limits: str
) -> None:
    compiling = {"time/step": 1.0, "time/data": 0.9, "time/compile": 9.0}
    log(run, compiling, {"time/step": 1.0, "time/data": waited, "time/compile": 0.0})
    found = read_run(run)
    assert (found.model, found.devices, found.row_lengths) == (tiny_model(), 4, (64, 128))
    assert (found.steps, found.data_wait) == (1, waited)
    config = of_run(found)
    assert (config.devices, config.row_lengths, config.tokens % 4) == (4, (64, 128), 0)
    for expected in ("compute", "data"):
        answer = _agreement(found, expected)
        assert answer["limits"] == limits
        assert answer["agrees"] == (limits == expected)


def test_a_run_that_says_nothing_is_refused_before_anything_is_measured(run: Path) -> None:
    for records, message in (
        ([], "no step has been logged; train it first"),
        ([{"time/step": 0.0, "time/data": 0.0, "time/compile": 0.0}], "no step has been logged"),
        ([{"loss": 1.0}], "step 0 was logged without its times"),
        ([{"time/step": "x", "time/data": 0, "time/compile": 0}], "without its times"),
    ):
        log(run, *records)
        with pytest.raises(MarinError, match=message):
            balance_command("--run", str(run))
    with pytest.raises(MarinError, match="--model: --run measures the run's own model"):
        balance_command("--run", str(run), "--model", "d768")
    with pytest.raises(MarinError, match="not a run's directory"):
        balance_command("--run", str(run.parent))


def balance_command(*arguments: str) -> None:
    CliRunner().invoke(app, ["bench", "balance", *arguments], catch_exceptions=False)


def test_no_modelled_transport_beats_its_grouped_product_or_its_exchange() -> None:
    rates = modelled_rates(preset("d6144"), device("gb200"), 65_536)
    for name, rate in rates.transports.items():
        assert rate < rates.parts["grouped product"]
        if name in ("pooled_wave", "ragged"):
            assert rate < rates.parts["exchange"]


def test_sizes_that_do_not_fit_are_named() -> None:
    with pytest.raises(MarinError, match="100 tokens over 3 devices"):
        BalanceConfig(devices=3, tokens=100)
    with pytest.raises(MarinError, match="8 experts over 64 devices"):
        CliRunner().invoke(
            app,
            ["bench", "balance", "--model", "tiny", "--device", "gb200"],
            catch_exceptions=False,
        )


def test_the_smoke_measures_both_sides_and_its_files_can_be_compared(tmp_path: Path) -> None:
    saved, plot, page = tmp_path / "balance.json", tmp_path / "b.svg", tmp_path / "history.html"
    command = [sys.executable, "-m", "marin.cli", "bench", "balance", "--smoke", "--json"]
    # As a user has it: no more devices, and threads for them, than are measured.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["XLA_FLAGS"] = " ".join(quick_flags())
    started = subprocess.run(
        [*command, "--save", str(saved), "--plot", str(plot)],
        env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert started.returncode == 0, started.stderr
    answer = json.loads(started.stdout)
    assert set(answer) == {"machine", "results", "balance"}
    assert answer["balance"]["verdict"]["limits"] == "compute"
    assert set(answer["balance"]["dispatch"]["parts"]) == {
        "rank", "permute", "exchange", "grouped product", "combine"
    }  # fmt: skip
    assert plot.read_text().startswith("<svg")
    (tmp_path / "balance-2026-01-01.json").write_text(saved.read_text())
    done = CliRunner().invoke(app, ["bench", "history", str(tmp_path), "--out", str(page)])
    assert done.exit_code == 0, done.output
    assert page.read_text().count("<figure") == len(answer["results"])
    done = CliRunner().invoke(app, ["bench", "compare", str(saved), str(saved), "--json"])
    assert {change["verdict"] for change in json.loads(done.stdout)["changes"]} == {"same"}


def test_what_is_faster_depends_on_the_unit() -> None:
    def line(metric: str, value: float, unit: str) -> dict[str, object]:
        return {"tool": "marin", "metric": metric, "value": value, "unit": unit}

    before = [line("a", 1.0, "s"), line("b", 1.0, "rows/s"), line("c", 1.0, "%"), line("d", 1, "s")]
    after = [line("a", 2.0, "s"), line("b", 2.0, "rows/s"), line("c", 2.0, "%"), line("e", 1, "s")]
    found = {change.metric: change.verdict for change in compare(before, after)}
    assert found == {"a": "slower", "b": "faster", "c": "changed"}


@pytest.mark.parametrize("least", [0.0, 5e-324])
def test_a_ratio_to_nothing_is_null_in_json(tmp_path: Path, least: float) -> None:
    line = {"tool": "marin", "version": "1", "metric": "a", "unit": "%", "runs": []}
    for name, value in (("before", least), ("after", 2.0)):
        (tmp_path / name).write_text(json.dumps({"results": [line | {"value": value}]}))
    files = [str(tmp_path / name) for name in ("before", "after")]
    done = CliRunner().invoke(app, ["bench", "compare", *files, "--json"])
    assert done.exit_code == 0, done.output
    (change,) = json.loads(done.stdout, parse_constant=pytest.fail)["changes"]
    assert (change["ratio"], change["verdict"]) == (None, "changed")


def test_a_file_that_holds_no_results_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(MarinError, match="no results"):
        CliRunner().invoke(
            app, ["bench", "compare", *[str(tmp_path / "x.json")] * 2], catch_exceptions=False
        )
