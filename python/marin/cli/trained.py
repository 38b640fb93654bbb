"""The model of a run's checkpoint, for commands that look at what was trained."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marin.engine import read_manifest
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


def load_trained(run: Path, at: int | None) -> Trained:
    """The newest complete checkpoint, or that of step `at`.

    Raises:
      MarinError: not a run, no such checkpoint, or a damaged one.
    """
    from marin.model import make_mesh
    from marin.train.checkpoint import Checkpoints, read_state
    from marin.train.run_directory import RunDirectory
    from marin.train.state import fill_named, named_arrays, take_apart

    directory = RunDirectory(run)
    config = directory.config()
    steps = directory.checkpoint_steps()
    step = at if at is not None else steps[-1] if steps else None
    if step not in steps:
        raise MarinError(f"{directory.checkpoints}: no complete checkpoint{_of(at)}; found {steps}")
    read_state(directory.checkpoints, step)
    mesh = make_mesh()
    trainee = take_apart(config.model, mesh)
    checkpoints = Checkpoints(directory.checkpoints, keep=1)
    try:
        arrays = checkpoints.restore(
            step, named_arrays(trainee.layout), prefixes=("parameters.", "router_bias")
        )
    finally:
        checkpoints.close()
    # Without the optimizer, which is twice as large as the model.
    layout = {"parameters": trainee.layout.parameters, "router_bias": trainee.layout.router_bias}
    state = fill_named(layout, arrays)
    return Trained(
        model=trainee.model(state["parameters"], state["router_bias"]),
        mesh=mesh,
        step=step,
        qk_scale=directory.planned_curriculum().at(max(step - 1, 0)).qk_scale,
    )


def _of(at: int | None) -> str:
    return "" if at is None else f" of step {at}"


def tokenizer_of(run: Path, named: Path | None) -> Path:
    """The directory of the tokenizer that made a run's data: `named` (a tokenizer directory or the
    `tokenizer.json` in one), or one found near the run, its shards, its store or its evaluation's
    tokenizer.

    Raises:
      MarinError: not a run, no tokenizer directory, or one of another tokenizer.
    """
    from marin.train.evaluation import find_tokenizer
    from marin.train.run_directory import RunDirectory

    directory = RunDirectory(run)
    config = directory.config()
    legs = directory.legs(config)
    wanted = directory.tokenizer() or _summary(legs[-1].shards).get("tokenizer")
    if named is not None:
        return _named_tokenizer(run, named, wanted)
    places = [run]
    for leg in legs:
        places += [leg.shards, Path(_summary(leg.shards).get("store", leg.shards))]
    if config.evaluation.tokenizer is not None:
        places.append(config.evaluation.tokenizer)
    if wanted is not None:
        for place in dict.fromkeys(path.resolve() for path in places):
            for folder in (place.parent, place.parent.parent):
                found = find_tokenizer(folder, wanted)
                if found is not None:
                    return found.parent
    raise MarinError(
        f"{run}: the tokenizer that made its data is not beside the run, its shards or its store; "
        "name it with --tokenizer: the directory that `marin datakit` wrote, or the tokenizer.json "
        "in it"
    )


def _named_tokenizer(run: Path, named: Path, wanted: str | None) -> Path:
    from marin.datakit.tokenizer import FILE_NAME

    path = named.parent if named.name == FILE_NAME else named
    if not (path / FILE_NAME).is_file():
        raise MarinError(
            f"{named}: no {FILE_NAME}; expected a tokenizer directory or the {FILE_NAME} in it"
        )
    found = read_manifest(path).summary.get("hash")
    if wanted is not None and found != wanted:
        raise MarinError(
            f"{named}: tokenizer {found}, but the data of {run} was made with {wanted}; "
            "name that one with --tokenizer"
        )
    return path


def _summary(directory: Path) -> Mapping[str, Any]:
    """What a directory's manifest says; nothing if it is gone: a model can be looked at without."""
    try:
        return read_manifest(directory).summary
    except MarinError:
        return {}
