"""Ladders from what is at hand: a grid file, the directories of runs, or what W&B keeps of them."""

from collections.abc import Sequence
from pathlib import Path

from marin.errors import MarinError
from marin.ladder.grid import Ladder, Rung, build_ladder, load_grid, read_rungs
from marin.ladder.wandb_files import is_wandb


def load(sources: Sequence[Path], metric: str | None) -> Ladder:
    """The ladder of one grid file, or of three or more runs: directories, or W&B's files of them.

    Raises:
      MarinError: the sources mix both kinds, or cannot be read or compared.
    """
    grids = [path for path in sources if not _is_run(path)]
    if not grids:
        return build_ladder([_read_run(path) for path in sources], metric, "runs")
    if len(sources) > 1:
        raise MarinError(f"{grids[0]}: not a run; give one grid file, or three or more runs")
    return load_grid(sources[0], metric)


def find_run(path: Path, name: str, metric: str) -> Rung:
    """The run at `path`: a run, or the rung `name` of a grid file.

    Raises:
      MarinError: there is no such run, or it has no evaluation of `metric` yet, or one that is not
        finite.
    """
    if _is_run(path):
        rung = _read_run(path)
    else:
        rungs = {rung.name: rung for rung in read_rungs(path)}
        if name not in rungs:
            raise MarinError(f"{path}: no rung {name}; it has {', '.join(rungs) or 'none'}")
        rung = rungs[name]
    if metric not in rung.metrics:
        have = ", ".join(rung.metrics) or "none"
        raise MarinError(f"{path}, {rung.name}: no evaluations of {metric}; it has {have}")
    return rung.comparable(metric, str(path))


def _is_run(path: Path) -> bool:
    return path.is_dir() or is_wandb(path)


def _read_run(path: Path) -> Rung:
    # The model is counted with JAX, which a grid does not need.
    from marin.ladder.runs import read_run, read_wandb_run

    return read_wandb_run(path) if is_wandb(path) else read_run(path)
