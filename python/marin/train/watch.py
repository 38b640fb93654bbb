"""What must not go unseen in a run of a hundred days: rules on the records of its steps.

Each rule is stated here, looks at one record and what came before, and speaks once when it begins
to be broken; it speaks again only after it has been kept for 100 steps. A rule that is to end the
run does so at every step that breaks it.

The numbers of a record are the same in all processes of a run, its times are not: where they may
end the run the first process judges and tells the others, which waits for the devices at each step.
"""

import json
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from marin.engine import write_json
from marin.errors import MALFORMED, MarinError
from marin.train.config import WatchConfig
from marin.train.metrics import plain
from marin.train.processes import ALONE, Processes
from marin.validation import is_finite

_WINDOW = 100  # steps that make the usual, and after which a kept rule may speak again
RECALLED = 2 * _WINDOW  # records that decide what the watch says next
_SETTLED = 20  # steps of a stretch before its usual is known
_EVIDENCE_STEPS = 50
_LOSS = "loss"  # of training
_ROUNDED = 1e-3  # of a run; a registration's progress is rounded
_TIMED = frozenset({"data_wait"})  # rules on what differs between processes

logger = logging.getLogger("marin.train")


@dataclass(frozen=True)
class Alarm:
    """A rule that begins to be broken at a step."""

    rule: str
    step: int
    message: str

    def to_json(self) -> dict[str, Any]:
        return {"rule": self.rule, "message": self.message}


class Watch:
    """The rules of one run, in each of its processes; `look` is given the record of every step in
    order, and `enforce` is called after it. `steps` are those of the whole run."""

    def __init__(
        self, config: WatchConfig, processes: Processes = ALONE, *, steps: int = 1
    ) -> None:
        self._config = config
        self._processes = processes
        self._fatal: list[Alarm] = []
        self._records: deque[dict[str, Any]] = deque(maxlen=_WINDOW)
        self._broken_at: dict[str, int] = {}
        self._steps = steps
        self._band = None if config.forecast is None else _Band.read(config.forecast)
        self._side, self._in_a_row = "inside", 0  # of the band: the last values
        self._off = ""  # what was found at the last value

    @property
    def seldom(self) -> str | None:
        """A metric that is compared and that few records have: `recall` needs all of them."""
        metric = None if self._band is None else self._band.metric
        return None if metric == _LOSS else metric

    def look(self, record: dict[str, Any]) -> list[Alarm]:
        """The rules that this record begins to break, logged as warnings."""
        alarms = self._judge(record)
        for alarm in alarms:
            logger.warning("step %d: %s: %s", alarm.step, alarm.rule, alarm.message)
        return alarms

    def recall(self, records: Sequence[dict[str, Any]]) -> None:
        """Records that a process before this one has looked at: what it said is not said again."""
        for record in records:
            self._judge(record)

    def enforce(self, run: Path) -> None:
        """Keeps the run in `run` going unless the last record breaks a rule of `stop_on`.

        Raises:
          MarinError: it does; in every process. The last 50 records lie beside the run.
        """
        if _TIMED.isdisjoint(self._config.stop_on):
            self._end(run)
        else:
            self._processes.from_first(lambda: self._end(run))

    def _judge(self, record: dict[str, Any]) -> list[Alarm]:
        broken = [Alarm(rule, record["step"], said) for rule, said in self._faults(record).items()]
        self._fatal = [alarm for alarm in broken if alarm.rule in self._config.stop_on]
        alarms = []
        for alarm in broken:
            last = self._broken_at.get(alarm.rule)
            self._broken_at[alarm.rule] = alarm.step
            if last is None or alarm.step - last > _WINDOW:
                alarms.append(alarm)
        self._records.append(record)
        return alarms

    def _end(self, run: Path) -> None:
        if not self._fatal:
            return
        first = self._fatal[0]
        path = run / f"evidence-{first.step:08d}.json"
        if self._processes.is_first:
            alarms = [alarm.to_json() for alarm in self._fatal]
            records = plain(list(self._records)[-_EVIDENCE_STEPS:])
            write_json(path, {"alarms": alarms, "records": records})
        raise MarinError(
            f"{run}: stopped at step {first.step} by rule {first.rule}: {first.message}; "
            f"the records are in {path.name}, checkpoints are kept"
        )

    def _faults(self, record: Mapping[str, Any]) -> dict[str, str]:
        """Broken rules and what they found."""
        config = self._config
        faults: dict[str, str] = {}
        # finite: loss and gradient norm are numbers.
        for name in ("loss", "grad_norm"):
            if not isfinite(record[name]):
                faults["finite"] = f"{name} is {record[name]}"
        # grad_norm: at most `grad_norm` times its median of the last 100 steps.
        usual = [r["grad_norm"] for r in self._records if isfinite(r["grad_norm"])]
        if len(usual) >= _SETTLED and record["grad_norm"] > config.grad_norm * median(usual):
            faults["grad_norm"] = (
                f"{record['grad_norm']:.3g} is more than {config.grad_norm:g} times its median "
                f"of the last {len(usual)} steps, {median(usual):.3g}"
            )
        # drops: at most `drop_fraction` of the assignments.
        if record["drop_fraction"] > config.drop_fraction:
            faults["drops"] = (
                f"{record['drop_fraction']:.1%} of the assignments dropped, more than "
                f"{config.drop_fraction:.1%}"
            )
        # forecast: fewer values in a row than was registered lie off the band on one side.
        if self._band is not None and self._is_off(self._band, record):
            faults["forecast"] = self._off
        # data_wait: at most `data_wait` of the time of the last 20 steps is spent on waiting.
        timed = [*self._records, record][-_SETTLED:]
        waited = sum(r["time/data"] for r in timed) / sum(r["time/step"] for r in timed)
        if len(timed) == _SETTLED and waited > config.data_wait:
            faults["data_wait"] = (
                f"{waited:.1%} of the last {_SETTLED} steps was waiting for data, more than "
                f"{config.data_wait:.1%}"
            )
        return faults

    def _is_off(self, band: "_Band", record: Mapping[str, Any]) -> bool:
        """Whether the last values of the metric, this record's included if it has one, are off; of
        the training loss the means of the last 20 steps are taken."""
        value, what = record.get(band.metric), band.metric
        if band.metric == _LOSS:
            recent = [r[_LOSS] for r in self._records][-_SETTLED:]
            value = sum(recent) / _SETTLED if len(recent) == _SETTLED else None
            what = f"mean loss of the last {_SETTLED} steps"
        place = (record["step"] + 1) / self._steps if band.registered else record["tokens"]
        if value is not None and place > band.burn_in:
            low, high = band.at(place)
            side = "inside" if low <= value <= high else "below" if value < low else "above"
            self._in_a_row = self._in_a_row + 1 if side == self._side else 1
            self._side = side
            self._off = (
                f"{what} is {value:.4f}, {side} its forecast of {low:.4f} to {high:.4f}, "
                f"{self._in_a_row} in a row"
            )
        return self._side != "inside" and self._in_a_row >= band.persistence


@dataclass(frozen=True)
class _Band:
    """The band of a metric, linear between its points: where (tokens, or progress from 0 to 1 if
    registered), low and high. It counts after `burn_in`."""

    metric: str
    points: Sequence[tuple[float, float, float]]
    registered: bool
    burn_in: float
    persistence: int

    @classmethod
    def read(cls, path: Path) -> "_Band":
        """A registration of `marin ladder register`, or in a `.json` file a list of `tokens`, `low`
        and `high` of the training loss."""
        if path.suffix != ".json":
            return cls._registration(path)
        try:
            raw = json.loads(path.read_text())
            points = sorted((int(p["tokens"]), float(p["low"]), float(p["high"])) for p in raw)
        except (OSError, *MALFORMED) as error:
            raise MarinError(
                f"{path}: not a forecast ({error}); expected a list of tokens, low and high"
            ) from None
        if not all(map(is_finite, (value for point in points for value in point))):
            raise MarinError(f"{path}: a forecast with numbers that are not finite")
        if not points:
            raise MarinError(f"{path}: a forecast without points")
        return cls(_LOSS, points, registered=False, burn_in=0, persistence=1)

    @classmethod
    def _registration(cls, path: Path) -> "_Band":
        from marin.ladder.register import read_registration  # fits with SciPy, slow to load

        block = read_registration(path)
        forecast, rule = block["forecast"], block["rule"]
        columns = (forecast[key] for key in ("progress", "low", "high"))
        points = sorted(zip(*columns, strict=True))
        persistence = int(rule["persistence"])
        return cls(block["metric"], points, True, rule["burn_in"] + _ROUNDED, persistence)

    def at(self, place: float) -> tuple[float, float]:
        index = bisect_right(self.points, place, key=lambda point: point[0])
        before = self.points[max(index - 1, 0)]
        after = self.points[min(index, len(self.points) - 1)]
        span = after[0] - before[0]
        share = min(max((place - before[0]) / span, 0.0), 1.0) if span else 0.0
        return (
            before[1] + share * (after[1] - before[1]),
            before[2] + share * (after[2] - before[2]),
        )
