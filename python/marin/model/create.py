"""Making a model: abstract, or with initial weights laid out over a mesh."""

from typing import Any

import jax
from flax import nnx
from jax.sharding import Mesh

from marin.model.config import HeroConfig
from marin.model.hero import Hero
from marin.model.sharding import parameter_shardings


def abstract(config: HeroConfig) -> Hero:
    """The model with shapes for arrays; nothing is allocated."""
    return nnx.eval_shape(lambda: Hero(config, nnx.Rngs(0)))


def create(config: HeroConfig, *, seed: int, mesh: Mesh) -> Hero:
    """The model with initial weights, made where they lie; the values do not depend on the mesh."""
    graph, shapes = nnx.split(abstract(config))
    shardings = parameter_shardings(shapes, mesh)

    def make(key: jax.Array) -> nnx.State[Any, Any]:
        return nnx.state(Hero(config, nnx.Rngs(params=key)))

    state = jax.jit(make, out_shardings=shardings)(jax.random.key(seed))
    return nnx.merge(graph, state)
