"""The rules of the watch, each broken once."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from marin.errors import MarinError
from marin.train.config import WatchConfig
from marin.train.watch import Watch


def record(step: int, **changes: Any) -> dict[str, Any]:
    usual = {"step": step, "tokens": step * 100, "loss": 3.0, "grad_norm": 0.5}
    usual |= {"drop_fraction": 0.02, "time/data": 0.0, "time/step": 0.1}
    return usual | {key.replace("_time", "time"): value for key, value in changes.items()}


def settled(**limits: Any) -> Watch:
    watch = Watch(WatchConfig(**limits))
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
    assert not watch.stops(watch.look(record(30, grad_norm=9.0)))
    alarms = watch.look(record(31, loss=math.nan))
    assert watch.stops(alarms)
    error = watch.keep_evidence(tmp_path, alarms)
    assert "step 31 by rule finite: loss is nan" in str(error)
    evidence = json.loads((tmp_path / "evidence-00000031.json").read_text())
    assert evidence["records"][-1]["loss"] == "nan"


def test_a_file_that_is_no_forecast_is_named(tmp_path: Path) -> None:
    path = tmp_path / "forecast.json"
    path.write_text("{}")
    with pytest.raises(MarinError, match=r"forecast\.json: a forecast without points"):
        Watch(WatchConfig(forecast=path))
