"""Where the routers of a run's checkpoint send the tokens of the run's own data."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from marin.errors import MarinError

if TYPE_CHECKING:
    from marin.dispatch.routings import RealDocuments

TOKENS = 65_536
"""Positions that are routed at least, if the run has as many."""


def routing_of_run(run: Path, *, at: int | None, layer: int | None) -> "RealDocuments":
    """The routing of one layer (from 0; default: the middle one) on rows that follow the newest
    checkpoint, or that of step `at`; at the end of a run, on its last rows.

    Raises:
      MarinError: not a run, no such checkpoint or layer, or its data is gone.
    """
    import jax
    import jax.numpy as jnp
    from flax import nnx

    from marin.cli.trained import load_trained
    from marin.dispatch.routings import by_document
    from marin.model import Batch
    from marin.model.routing import choices
    from marin.train.run_directory import RunDirectory
    from marin.train.source import open_source

    trained = load_trained(run, at)
    config = trained.model.config
    layer = config.layers // 2 if layer is None else layer
    if not 0 <= layer < config.layers:
        raise MarinError(
            f"{run}: --layer is {layer}; its model has layers 0 to {config.layers - 1}"
        )
    directory = RunDirectory(run)
    source = open_source(directory.legs(directory.config()))
    curriculum = directory.curriculum(directory.config(), source)
    graph, state = nnx.split(trained.model)

    @jax.jit
    def route(state: Any, batch: Batch) -> tuple[Any, Any]:
        model = nnx.merge(graph, state)
        chosen = choices(model, batch, mesh=trained.mesh, qk_scale=trained.qk_scale)
        return chosen.experts[layer], chosen.weights[layer]

    last = curriculum.at(curriculum.steps - 1).segment
    needed = -(-TOKENS // (last.batch_size * last.seq_len))
    first = max(0, min(trained.step, curriculum.steps - needed))
    found: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any]]] = []
    documents = positions = 0
    for step in range(first, curriculum.steps):
        read = source.read(step)
        fields = (read.tokens, read.segment_ids, read.positions, read.loss_mask)
        experts, weights = (np.asarray(a) for a in route(state, Batch(*map(jnp.asarray, fields))))
        valid = read.segment_ids > 0
        starts = (read.positions == 0) & valid
        numbers = documents + np.cumsum(starts).reshape(starts.shape) - 1
        documents += int(starts.sum())
        found.append((experts[valid], weights[valid], numbers[valid]))
        positions += valid.size
        if positions >= TOKENS:
            break
    experts, weights, numbers = (np.concatenate(part) for part in zip(*found, strict=True))
    return by_document(experts, weights, numbers, config.experts)
