"""The whole device state of a run, and its names in a checkpoint."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from marin.model import (
    Batch,
    Hero,
    HeroConfig,
    RouterBias,
    abstract,
    create,
    optimizer_groups,
    parameter_specs,
    row_spec,
)
from marin.train.optimizer import hero_optimizer


class TrainState(NamedTuple):
    """What a step reads and replaces.

    `step` counts finished steps; `router_bias` [layers, experts] is the pending bias of the next.
    """

    step: Int[Array, ""]
    parameters: Any
    router_bias: Float[Array, "N E"]
    optimizer: optax.OptState


class Trainee(NamedTuple):
    """A model taken apart: what stays the same over a run.

    `labels` and `specs` are trees like the parameters: optimizer group and `PartitionSpec` of each.
    `layout` is a `TrainState` of `jax.ShapeDtypeStruct` with the sharding of every array.
    """

    config: HeroConfig
    graph: Any
    labels: Any
    specs: Any
    optimizer: optax.GradientTransformationExtraArgs
    mesh: Mesh
    layout: TrainState

    def model(self, parameters: Any, router_bias: Array) -> Hero:
        """The model with these weights and this bias."""
        state = nnx.State({"router_bias": RouterBias(router_bias)})
        model: Hero = nnx.merge(self.graph, parameters, state)
        return model

    def batch_layout(self, rows: int, seq_len: int) -> Batch:
        """A batch of `jax.ShapeDtypeStruct`, its rows spread over the mesh."""
        sharding = NamedSharding(self.mesh, row_spec(2))
        integers: Any
        flags: Any
        integers, flags = (
            jax.ShapeDtypeStruct((rows, seq_len), dtype, sharding=sharding)
            for dtype in (jnp.int32, jnp.bool_)
        )
        return Batch(integers, integers, integers, flags)

    def initial(self, seed: int) -> TrainState:
        """Fresh weights and moments, laid out; the values do not depend on the mesh."""
        model = create(self.config, seed=seed, mesh=self.mesh)
        parameters = nnx.state(model, nnx.Param)
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.layout.optimizer)
        moments = jax.jit(self.optimizer.init, out_shardings=shardings)(parameters)
        whole = NamedSharding(self.mesh, P())
        step = jax.device_put(jnp.zeros((), jnp.int32), whole)
        router_bias = jax.device_put(model.router_bias[...], whole)
        return TrainState(step, parameters, router_bias, moments)


def take_apart(config: HeroConfig, mesh: Mesh) -> Trainee:
    """The model's fixed parts and the layout of its state; allocates nothing."""
    graph, parameters, *_ = nnx.split(abstract(config), nnx.Param, RouterBias)
    labels = optimizer_groups(parameters)
    specs = parameter_specs(parameters, mesh)
    optimizer = hero_optimizer(labels, specs, mesh)
    whole = NamedSharding(mesh, P())
    shapes = TrainState(
        step=jax.eval_shape(lambda: jnp.zeros((), jnp.int32)),
        parameters=parameters,
        router_bias=jax.eval_shape(lambda: jnp.zeros((config.layers, config.experts), jnp.float32)),
        optimizer=jax.eval_shape(optimizer.init, parameters),
    )
    by_name = {name: NamedSharding(mesh, spec) for name, spec in named_arrays(specs).items()}
    layout = {
        name: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=by_name.get(_parameter_in(name, by_name), whole)
        )
        for name, leaf in named_arrays(shapes).items()
    }
    return Trainee(config, graph, labels, specs, optimizer, mesh, fill_named(shapes, layout))


def named_arrays(tree: Any) -> dict[str, Any]:
    """The leaves of a pytree under dotted names: `parameters.layers.attention.query`."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): leaf for path, leaf in leaves}


def fill_named(tree: Any, arrays: dict[str, Any]) -> Any:
    """A tree like `tree` with the leaves of `arrays`, the inverse of `named_arrays`."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    return jax.tree.unflatten(structure, [arrays[_name(path)] for path, _ in leaves])


def _name(path: tuple[Any, ...]) -> str:
    if path and path[-1] == jax.tree_util.GetAttrKey("value"):
        path = path[:-1]  # the array inside an `nnx.Variable`
    parts = (getattr(key, "key", getattr(key, "name", getattr(key, "idx", ""))) for key in path)
    return ".".join(str(part) for part in parts)


def _parameter_in(name: str, parameters: dict[str, Any]) -> str:
    """The longest parameter name that `name` ends with: whose weight, gradient or moment it is."""
    parts = name.split(".")
    suffixes = (".".join(parts[start:]) for start in range(len(parts)))
    return next((suffix for suffix in suffixes if suffix in parameters), "")
