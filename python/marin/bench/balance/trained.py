"""A training run of this machine, with whose wait for data a verdict is checked."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin.errors import MarinError
from marin.model import HeroConfig
from marin.train.metrics import stream_metrics
from marin.train.run_directory import RunDirectory

_COMPILING = 0.1  # a step that waited longer for its program, as a share of its time, is left out


@dataclass(frozen=True)
class TrainedRun:
    """Its model, the devices that share the experts, and the share of `steps` steps' time that it
    waited for data."""

    path: Path
    model: HeroConfig
    devices: int
    row_lengths: tuple[int, ...]
    steps: int
    data_wait: float


def read_run(path: Path) -> TrainedRun:
    """Reads what a run has measured.

    Raises:
      MarinError: it is no run, or has not logged a step yet.
    """
    directory = RunDirectory(path)
    config = directory.config()
    times = [_times(path, record) for record in stream_metrics(directory.metrics)]
    steady = [(step, data) for step, data, compiling in times if compiling < _COMPILING * step]
    chosen = steady or [(step, data) for step, data, _ in times]
    total = sum(step for step, _ in chosen)
    if not total > 0:
        raise MarinError(f"{path}: no step has been logged; train it first")
    segments = directory.planned_curriculum().segments
    return TrainedRun(
        path=path,
        model=config.model,
        devices=config.mesh.expert,
        row_lengths=tuple(sorted({segment.seq_len for segment in segments})),
        steps=len(chosen),
        data_wait=sum(data for _, data in chosen) / total,
    )


def _times(path: Path, record: dict[str, Any]) -> tuple[float, float, float]:
    """Seconds of a step: in all, waiting for data, waiting for its program."""
    try:
        step, data, compiling = (
            float(record[f"time/{name}"]) for name in ("step", "data", "compile")
        )
    except (KeyError, TypeError, ValueError):
        raise MarinError(
            f"{path}: step {record.get('step')} was logged without its times"
        ) from None
    return step, data, compiling
