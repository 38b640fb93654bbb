"""The rules of the watch, each broken once."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from marin.errors import MarinError
from marin.ladder.register import FORMAT
from marin.train.config import WatchConfig
from marin.train.metrics import MetricsLog, last_records
from marin.train.processes import ALONE, Processes
from marin.train.watch import Watch


def record(step: int, **changes: Any) -> dict[str, Any]:
    usual = {"step": step, "tokens": step * 100, "loss": 3.0, "grad_norm": 0.5}
    usual |= {"drop_fraction": 0.02, "time/data": 0.0, "time/step": 0.1}
    return usual | {key.replace("_time", "time"): value for key, value in changes.items()}


def settled(processes: Processes = ALONE, **limits: Any) -> Watch:
    watch = Watch(WatchConfig(**limits), processes)
    assert [alarm for step in range(30) for alarm in watch.look(record(step))] == []
    return watch


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"loss": math.nan}, "finite"),
        ({"grad_norm": math.inf}, "finite"),
        ({"grad_norm": 2.1}, "grad_norm"),
        ({"drop_fraction": 0.11}, "drops"),
        ({"time/data": 0.2}, "data_wait"),
    ],
)
def test_each_rule_speaks_once_and_again_after_it_was_kept(
    changes: dict[str, float], rule: str
) -> None:
    watch = settled()
    alarms = watch.look(record(30, **changes))
    assert rule in [alarm.rule for alarm in alarms]
    assert watch.look(record(31, **changes)) == []
    for step in range(32, 200):
        assert watch.look(record(step)) == []
    assert rule in [alarm.rule for alarm in watch.look(record(200, **changes))]


def test_a_loss_off_its_forecast_band_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "forecast.json"
    points = [{"tokens": 0, "low": 2.9, "high": 3.1}, {"tokens": 6_000, "low": 2.3, "high": 2.5}]
    path.write_text(json.dumps(points))
    watch = Watch(WatchConfig(forecast=path))
    spoken = [(alarm.rule, alarm.step) for s in range(60) for alarm in watch.look(record(s))]
    assert spoken == [("forecast", 20)]


METRIC = "eval/dropless/loss_macro"


def registration(path: Path, metric: str = METRIC) -> Path:
    """As `marin ladder register` writes it, but for what is not held against single values."""
    forecast = {
        "target": {"name": "big", "train_flops": 1.0, "tokens": 1.0, "active_params": 1.0},
        "progress": [0.0, 1.0], "loss": [4.0, 3.0], "low": [3.5, 2.5], "high": [4.5, 3.5],
    }  # fmt: skip
    block = {
        "format": FORMAT, "metric": metric, "tolerance": 0.02, "recipe": {}, "normal": {},
        "rule": {"burn_in": 0.1, "persistence": 3}, "forecast": forecast,
    }  # fmt: skip
    path.write_text(f"# Forecast\n\n```json\n{json.dumps(block)}\n```\n")
    return path


def evaluated(evaluations: dict[int, float], stop: int) -> list[dict[str, Any]]:
    values = {step: {METRIC: value} for step, value in evaluations.items()}
    return [record(step) | values.get(step, {}) for step in range(stop)]


def test_evaluations_off_their_registered_band_are_seen_as_registered(tmp_path: Path) -> None:
    """Not in the burn-in, not by the training loss, and not before the third on one side."""
    config = WatchConfig(forecast=registration(tmp_path / "forecast.md"), stop_on=("forecast",))
    off = {9: 9.0, 199: 3.8, 299: 9.0, 399: 9.0, 499: 1.0, 599: 9.0, 699: 9.0, 799: 9.0, 899: 9.0}
    watch = Watch(config, steps=1_000)
    records = evaluated(off | {999: 3.0}, 1_000)
    spoken = [(a.rule, a.step, a.message) for r in records[:900] for a in watch.look(r)]
    said = f"{METRIC} is 9.0000, above its forecast of 2.7000 to 3.7000, 3 in a row"
    assert spoken == [("forecast", 799, said)]
    with pytest.raises(MarinError, match="by rule forecast"):
        watch.enforce(tmp_path)
    for r in records[900:]:
        watch.look(r)
    watch.enforce(tmp_path)


def test_evaluations_count_over_restarts(tmp_path: Path) -> None:
    config = WatchConfig(forecast=registration(tmp_path / "forecast.md"))
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for r in evaluated({399: 9.0, 699: 9.0, 850: 9.0, 899: 3.0}, 900):
        log.write(r)
        if r["step"] == 850:
            length = log.sync()
    log.close()
    watch = Watch(config, steps=1_000)
    recalled = last_records(path, length, 100, watch.seldom)
    assert [r["step"] for r in recalled] == [399, 699, *range(751, 851)]
    watch.recall(recalled[:-1])
    assert [alarm.rule for alarm in watch.look(recalled[-1])] == ["forecast"]


def test_a_registration_of_the_training_loss_is_held_against_its_mean(tmp_path: Path) -> None:
    config = WatchConfig(forecast=registration(tmp_path / "forecast.md", "loss"))
    watch = Watch(config, steps=100)
    spoken = [alarm.step for step in range(100) for alarm in watch.look(record(step, loss=3.45))]
    assert spoken == []
    watch = Watch(config, steps=100)
    spoken = [alarm.step for step in range(100) for alarm in watch.look(record(step, loss=3.2))]
    assert spoken == [22]  # low is 3.27 there; the first mean is of step 20
    assert watch.seldom is None


def test_a_registration_that_was_written_is_taken() -> None:
    path = Path(__file__).parents[2] / "benches/results/ladder_small_5/registration.md"
    assert Watch(WatchConfig(forecast=path)).seldom == METRIC


def test_a_rule_that_stops_the_run_keeps_the_evidence(tmp_path: Path) -> None:
    watch = settled(stop_on=("finite", "drops"))
    watch.look(record(30, grad_norm=9.0))
    watch.enforce(tmp_path)
    watch.look(record(31, loss=math.nan))
    with pytest.raises(MarinError, match="step 31 by rule finite: loss is nan"):
        watch.enforce(tmp_path)
    evidence = json.loads((tmp_path / "evidence-00000031.json").read_text())
    assert evidence["records"][-1]["loss"] == "nan"


def test_a_rule_that_was_broken_before_it_was_to_stop_the_run_stops_it(tmp_path: Path) -> None:
    watch = Watch(WatchConfig(stop_on=("drops",)))
    watch.recall([record(step, drop_fraction=0.2) for step in range(30)])
    assert watch.look(record(30, drop_fraction=0.2)) == []  # it has spoken
    with pytest.raises(MarinError, match="step 30 by rule drops"):
        watch.enforce(tmp_path)


class Wire:
    """What the first of two processes tells the other; kept, since here they take turns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.told: list[dict[str, Any]] = []
        monkeypatch.setattr(Processes, "_told", self._tell)

    def _tell(self, answer: dict[str, Any]) -> dict[str, Any]:
        if answer:
            self.told.append(answer)
        return self.told[-1]


def ends(watch: Watch, run: Path, seen: dict[str, Any]) -> str:
    run.mkdir(exist_ok=True)
    watch.look(seen)
    try:
        watch.enforce(run)
    except MarinError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("waiting", [0, 1])
def test_times_of_the_first_process_end_the_run_in_all(
    waiting: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(monkeypatch)
    limits = {"stop_on": ("finite", "data_wait"), "data_wait": 0.1}
    seen = [record(30, **{"time/data": 0.5 * (index == waiting)}) for index in range(2)]
    said = []
    for index in range(2):
        watch = settled(processes=Processes(index, 2), **limits)
        said.append(ends(watch, tmp_path / str(index), seen[index]))
    assert said[0] == said[1]
    assert ("by rule data_wait" in said[0]) == (waiting == 0)
    assert len(wire.told) == 1
    assert not list((tmp_path / "1").iterdir())


def test_numbers_end_the_run_in_all_processes_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(monkeypatch)
    for index in range(2):
        watch = settled(processes=Processes(index, 2))
        said = ends(watch, tmp_path / str(index), record(30, loss=math.nan))
        assert "step 30 by rule finite" in said
    assert wire.told == []
    assert [path.parent.name for path in tmp_path.glob("*/evidence-*.json")] == ["0"]


def test_a_file_that_is_no_forecast_is_named(tmp_path: Path) -> None:
    path = tmp_path / "forecast.json"
    path.write_text("{}")
    with pytest.raises(MarinError, match=r"forecast\.json: a forecast without points"):
        Watch(WatchConfig(forecast=path))
    path = tmp_path / "forecast.md"
    path.write_text("{}")
    with pytest.raises(MarinError, match=r"forecast\.md: no JSON block; expected a registration"):
        Watch(WatchConfig(forecast=path))
