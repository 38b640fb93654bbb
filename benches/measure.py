"""Times work and collects the results of a bench as JSON."""

import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SECONDS = 1.0
"""A measurement is repeated until it has taken this long, at least `RUNS` times."""
RUNS = 3


@dataclass
class Results:
    """Lines of {tool, version, metric, value, unit, runs}; each is printed as it comes."""

    name: str
    lines: list[dict[str, Any]] = field(default_factory=list)

    def rate(self, tool: str, metric: str, count: int, unit: str, work: Callable[[], Any]) -> float:
        """Millions of `unit` per second, the median of all runs, `count` being done in each."""
        runs: list[float] = []
        while len(runs) < RUNS or sum(runs) < SECONDS:
            start = time.perf_counter()
            work()
            runs.append(time.perf_counter() - start)
        value = count / statistics.median(runs) / 1e6
        self.add(tool, metric, value, f"M {unit}/s", runs)
        return value

    def add(
        self, tool: str, metric: str, value: float, unit: str, runs: list[float] | None = None
    ) -> None:
        line = {
            "tool": tool,
            "version": _version(tool),
            "metric": metric,
            "value": value,
            "unit": unit,
            "runs": runs or [],
        }
        self.lines.append(line)
        print(f"{tool:12} {metric:48} {value:12.4g} {unit}", flush=True)

    def write(self, out: Path | None) -> None:
        """Writes `benches/results/<name>.json`, or `out`."""
        path = out or Path(__file__).parent / "results" / f"{self.name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        machine = {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load": os.getloadavg()[0],
        }
        report = {"machine": machine, "results": self.lines}
        path.write_text(json.dumps(report, indent=1) + "\n")


def _version(tool: str) -> str:
    if tool == "marin":
        from marin._native import __version__

        return __version__
    try:
        return version(tool)
    except PackageNotFoundError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "")
