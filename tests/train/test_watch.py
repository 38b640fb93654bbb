"""The rules of the watch, each broken once."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from marin.errors import MarinError
from marin.train.config import WatchConfig
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
