"""What a benchmark found: one line per tool and metric, in the form that `marin bench` prints."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import marin
from marin.bench.machine import describe_machine
from marin.engine import check_output_file, check_output_root, is_json_with
from marin.errors import MarinError

T = TypeVar("T")

MARIN = "marin"
_RUNS = 3
_SECONDS = 1.0
"""A measurement is repeated until it has taken this long, at least `_RUNS` times."""


@dataclass
class Results:
    """Lines of {tool, version, metric, value, unit, runs}."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def add(
        self, tool: str, metric: str, value: float, unit: str, runs: Iterable[float] = ()
    ) -> None:
        line = {"tool": tool, "version": version_of(tool), "metric": metric}
        self.lines.append(line | {"value": float(value), "unit": unit, "runs": list(runs)})

    def rate(
        self, tool: str, metric: str, count: float, unit: str, work: Callable[[], object]
    ) -> float:
        """`unit` per second, the median of all runs after a first one that does not count; each run
        does `count` of them."""
        work()
        rates = [count / seconds for seconds in timed(work)]
        value = statistics.median(rates)
        self.add(tool, metric, value, f"{unit}/s", rates)
        return value

    def report(self) -> dict[str, Any]:
        return {"machine": describe_machine(), "results": self.lines}


def check_outputs(
    save: Path | None, root: Path | None = None, *, inputs: Sequence[Path] = ()
) -> None:
    """Before a measurement: may its results go to the file `save` and its corpus below `root`?

    Raises:
      MarinError: no; see `check_output_file` and `check_output_root`.
    """
    if save is not None:
        check_output_file(save, "results", is_json_with("machine", "results"), inputs=inputs)
    if root is not None:
        check_output_root(root)


def timed(
    work: Callable[[], object], *, runs: int = _RUNS, seconds: float = _SECONDS
) -> list[float]:
    """Seconds of each run: at least `runs` of them, for at least `seconds`."""
    found: list[float] = []
    while len(found) < runs or sum(found) < seconds:
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return found


def version_of(tool: str) -> str:
    return marin.__version__ if tool == MARIN else metadata.version(tool)


def chosen(tools: Sequence[str], peers: Mapping[str, T]) -> dict[str, T]:
    """Of `peers`, whose keys are distributions, those named in `tools`.

    Raises:
      MarinError: one of them is unknown or not installed.
    """
    for tool in tools:
        if tool not in peers:
            raise MarinError(f"{tool}: unknown; known are {', '.join(peers)}")
        try:
            metadata.version(tool)
        except metadata.PackageNotFoundError:
            raise MarinError(
                f"{tool}: not installed; pip install '.[bench-data]' in the repository, or name "
                "others in --only"
            ) from None
    return {tool: peers[tool] for tool in tools}
