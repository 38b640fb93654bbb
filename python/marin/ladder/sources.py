"""Ladders from what is at hand: a grid file, or the directories of runs."""

from collections.abc import Sequence
from pathlib import Path

from marin.errors import MarinError
from marin.ladder.grid import Ladder, Rung, build_ladder, load_grid, read_rungs


def load(sources: Sequence[Path], metric: str | None) -> Ladder:
    """The ladder of one grid file, or of three or more run directories.

    Raises:
      MarinError: the sources mix both kinds, or cannot be read or compared.
    """
    directories = [path for path in sources if path.is_dir()]
    if not directories:
        if len(sources) > 1:
            raise MarinError(
                f"{sources[1]}: not a directory; give one grid file, or the directories of runs"
            )
        return load_grid(sources[0], metric)
    others = [path for path in sources if not path.is_dir()]
    if others:
        raise MarinError(f"{others[0]}: not the directory of a run, as {directories[0]} is")
    from marin.ladder.runs import read_run

    return build_ladder([read_run(path) for path in directories], metric, "runs")


def find_run(path: Path, name: str, metric: str) -> Rung:
    """The run at `path`: a run's directory, or the rung `name` of a grid file.

    Raises:
      MarinError: there is no such run, or it has no evaluation of `metric` yet.
    """
    if path.is_dir():
        from marin.ladder.runs import read_run

        rung = read_run(path)
    else:
        rungs = {rung.name: rung for rung in read_rungs(path)}
        if name not in rungs:
            raise MarinError(f"{path}: no rung {name}; it has {', '.join(rungs) or 'none'}")
        rung = rungs[name]
    if metric not in rung.metrics:
        have = ", ".join(rung.metrics) or "none"
        raise MarinError(f"{path}, {rung.name}: no evaluations of {metric}; it has {have}")
    return rung
