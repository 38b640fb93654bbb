"""The model of a run's checkpoint, for commands that look at what was trained."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
    plan = json.loads((run / PLAN_NAME).read_text())
    curriculum = Curriculum.from_json(plan["curriculum"])
    return Trained(
        model=trainee.model(state.parameters, state.router_bias),
        mesh=mesh,
        step=step,
        qk_scale=curriculum.at(max(step - 1, 0)).qk_scale,
        tokenizer=_tokenizer_near((run, config.shards), plan["data"]["tokenizer"]),
    )


def _of(at: int | None) -> str:
    return "" if at is None else f" of step {at}"


def _tokenizer_near(paths: tuple[Path, ...], made_with: Any) -> Path | None:
    """The directory beside a path, or one level up, whose tokenizer has the hash of the data."""
    from marin.engine import read_manifest

    wanted = made_with["hash"] if isinstance(made_with, dict) else made_with
    for path in paths:
        for folder in (path.resolve().parent, path.resolve().parent.parent):
            for found in sorted(folder.glob("*/tokenizer.json")):
                try:
                    summary = read_manifest(found.parent).summary
                except MarinError:
                    continue
                if summary.get("hash") == wanted:
                    return found.parent
    return None
