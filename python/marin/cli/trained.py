"""The model of a run's checkpoint, for commands that look at what was trained."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from marin.errors import MarinError

if TYPE_CHECKING:
    from jax.sharding import Mesh

    from marin.model import Hero


@dataclass(frozen=True)
class Trained:
    """A model on one device, and where in its run it stands."""

    model: "Hero"
    mesh: "Mesh"
    step: int
    qk_scale: float
    tokenizer: Path | None
    """Directory of the tokenizer that its data was made with, where one lies near the run."""


def load_trained(run: Path, at: int | None) -> Trained:
    """The newest complete checkpoint, or that of step `at`.

    Raises:
      MarinError: not a run, no such checkpoint, or a damaged one.
    """
    from marin.model import make_mesh
    from marin.train.checkpoint import Checkpoints, complete_steps, read_state
    from marin.train.curriculum import Curriculum
    from marin.train.run_directory import PLAN_NAME, RunDirectory
    from marin.train.state import fill_named, named_arrays, take_apart

    directory = RunDirectory(run)
    config = directory.config()
    steps = complete_steps(directory.checkpoints)
    step = at if at is not None else steps[-1] if steps else None
    if step not in steps:
        raise MarinError(f"{directory.checkpoints}: no complete checkpoint{_of(at)}; found {steps}")
    read_state(directory.checkpoints, step)
    mesh = make_mesh()
    trainee = take_apart(config.model, mesh)
    checkpoints = Checkpoints(directory.checkpoints, keep=1)
    try:
        arrays = checkpoints.restore(step, named_arrays(trainee.layout))
    finally:
        checkpoints.close()
    state = fill_named(trainee.layout, arrays)
    curriculum = Curriculum.from_json(json.loads((run / PLAN_NAME).read_text())["curriculum"])
    shards = directory.legs(config)[-1].shards
    return Trained(
        model=trainee.model(state.parameters, state.router_bias),
        mesh=mesh,
        step=step,
        qk_scale=curriculum.at(max(step - 1, 0)).qk_scale,
        tokenizer=_tokenizer_near(run, shards),
    )


def _of(at: int | None) -> str:
    return "" if at is None else f" of step {at}"


def _tokenizer_near(run: Path, shards: Path) -> Path | None:
    """The directory beside run or shards, or one level up, whose tokenizer has made the shards."""
    from marin.engine import read_manifest

    try:
        wanted = read_manifest(shards).summary["tokenizer"]
    except MarinError:  # the shards are gone; a model can be looked at without them
        return None
    for path in (run, shards):
        for folder in (path.resolve().parent, path.resolve().parent.parent):
            for found in sorted(folder.glob("*/tokenizer.json")):
                try:
                    summary = read_manifest(found.parent).summary
                except MarinError:
                    continue
                if summary.get("hash") == wanted:
                    return found.parent
    return None
