"""MuonH, AdamH and Adam on optax: a direction per group, then one step that keeps norms.

In MuonH and AdamH a matrix `p` moves by `rate * |p| / |u| * u` along its direction `u` and is
rescaled to `|p|`, so `rate` is the angle of the step and no weight decay is needed. Norms are
Frobenius norms of the trailing two dimensions: each expert of a stack keeps its own.

Rates and constants are arguments of each update and not of the optimizer, since they are functions
of the tokens seen (`marin.train.curriculum`).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from marin.train.newton_schulz import orthogonalize_all
from marin.train.norms import dots, matrix_dots
from marin.train.rates import BETA1, MUON_MOMENTUM

GROUPS = ("muonh", "adamh", "adam")
_TINY = 1e-30


class Hyper(NamedTuple):
    """What an update needs besides gradients: float32 scalars."""

    muonh_rate: Float[Array, ""]
    adam_rate: Float[Array, ""]
    beta2: Float[Array, ""]
    eps: Float[Array, ""]


class MuonState(NamedTuple):
    momentum: optax.Updates


class AdamState(NamedTuple):
    """Moments, and the sum of the weights in each: what a zero start leaves short of 1.

    With a beta2 that follows the batch size the usual `1 - beta2 ** count` would be wrong.
    """

    first: optax.Updates
    second: optax.Updates
    weight1: Float[Array, ""]
    weight2: Float[Array, ""]


def hero_optimizer(labels: Any, specs: Any, mesh: Mesh) -> optax.GradientTransformationExtraArgs:
    """The optimizer of a model: `update(gradients, state, parameters, hyper=Hyper(...))`.

    `labels` and `specs` are trees like the parameters: "muonh", "adamh" or "adam", and the
    `PartitionSpec` of each on the mesh. Updates are float32 and to be added to the parameters.
    """
    muon_specs = [
        spec
        for label, spec in zip(_leaves(labels), _leaves(specs), strict=True)
        if label == "muonh"
    ]
    directions = {
        "muonh": muon_direction(muon_specs, mesh),
        "adamh": adam_direction(),
        "adam": adam_direction(),
    }
    return optax.chain(optax.partition(directions, labels), take_step(labels, specs, mesh))


def muon_direction(specs: list[Any], mesh: Mesh) -> optax.GradientTransformationExtraArgs:
    """Nesterov momentum 0.95, then five Newton-Schulz steps on each matrix."""

    def init(params: optax.Params) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, params))

    def update(
        gradients: optax.Updates, state: MuonState, params: optax.Params | None = None, **_: Any
    ) -> tuple[optax.Updates, MuonState]:
        del params
        momentum = jax.tree.map(lambda m, g: MUON_MOMENTUM * m + g, state.momentum, gradients)
        ahead = jax.tree.map(lambda m, g: MUON_MOMENTUM * m + g, momentum, gradients)
        leaves, structure = jax.tree.flatten(ahead)
        direction = jax.tree.unflatten(structure, orthogonalize_all(leaves, specs, mesh))
        return direction, MuonState(momentum)

    return optax.GradientTransformationExtraArgs(init, update)


def adam_direction() -> optax.GradientTransformationExtraArgs:
    """First moment over root of second, their start bias corrected under a changing beta2."""

    def init(params: optax.Params) -> AdamState:
        first, second = (jax.tree.map(jnp.zeros_like, params) for _ in range(2))
        return AdamState(first, second, jnp.zeros((), jnp.float32), jnp.zeros((), jnp.float32))

    def update(
        gradients: optax.Updates,
        state: AdamState,
        params: optax.Params | None = None,
        *,
        hyper: Hyper,
        **_: Any,
    ) -> tuple[optax.Updates, AdamState]:
        del params
        beta2, eps = hyper.beta2, hyper.eps
        first = jax.tree.map(lambda m, g: BETA1 * m + (1 - BETA1) * g, state.first, gradients)
        second = jax.tree.map(
            lambda v, g: beta2 * v + (1 - beta2) * jnp.square(g), state.second, gradients
        )
        weight1 = BETA1 * state.weight1 + (1 - BETA1)
        weight2 = beta2 * state.weight2 + (1 - beta2)
        direction = jax.tree.map(
            lambda m, v: (m / weight1) / (jnp.sqrt(v / weight2) + eps), first, second
        )
        return direction, AdamState(first, second, weight1, weight2)

    return optax.GradientTransformationExtraArgs(init, update)


def take_step(labels: Any, specs: Any, mesh: Mesh) -> optax.GradientTransformationExtraArgs:
    """From directions to updates: by angle with the norm kept (muonh, adamh), or by length (adam).

    A zero direction or a zero matrix does not move.
    """
    flat_labels = _leaves(labels)
    kept = [index for index, label in enumerate(flat_labels) if label != "adam"]
    kept_specs = [_leaves(specs)[index] for index in kept]

    def update(
        directions: optax.Updates,
        state: optax.EmptyState,
        params: optax.Params | None = None,
        *,
        hyper: Hyper,
        **_: Any,
    ) -> tuple[optax.Updates, optax.EmptyState]:
        flat, structure = jax.tree.flatten(directions)
        weights = jax.tree.leaves(params)
        chosen = [(weights[index], flat[index]) for index in kept]
        pairs = [(a, b) for p, u in chosen for a, b in ((p, p), (u, u), (p, u))]
        sums = matrix_dots(pairs, [spec for spec in kept_specs for _ in range(3)], mesh)
        steps = [-hyper.adam_rate * direction for direction in flat]
        for position, (index, (p, u)) in enumerate(zip(kept, chosen, strict=True)):
            pp, uu, pu = sums[3 * position : 3 * position + 3]
            steps[index] = _norm_keeping_step(p, u, pp, uu, pu, hyper.muonh_rate)
        return jax.tree.unflatten(structure, steps), state

    return optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)


def _norm_keeping_step(
    p: Float[Array, "*stack R C"],
    u: Float[Array, "*stack R C"],
    pp: Float[Array, "*stack"],
    uu: Float[Array, "*stack"],
    pu: Float[Array, "*stack"],
    rate: Float[Array, ""],
) -> Float[Array, "*stack R C"]:
    """The change of `p` that moves it by `rate |p|` against `u` and back to its norm.

    `|p - a u|^2 = pp - 2 a pu + a^2 uu`, so the three sums are all that is reduced over devices.
    """
    length = rate * jnp.sqrt(pp / jnp.maximum(uu, _TINY))
    moved = pp - 2 * length * pu + jnp.square(length) * uu
    scale = jnp.sqrt(pp / jnp.maximum(moved, _TINY))
    scale, length = scale[..., None, None], length[..., None, None]
    return (scale - 1) * p - scale * length * u


def group_norms(
    labels: Any, specs: Any, trees: Mapping[str, Any], mesh: Mesh
) -> dict[str, dict[str, Float[Array, ""]]]:
    """Euclidean norm of each group's part of each tree, over all shards, in float32."""
    flat_labels, flat_specs = _leaves(labels), _leaves(specs)
    leaves = [leaf for tree in trees.values() for leaf in jax.tree.leaves(tree)]
    squares = dots([(leaf, leaf) for leaf in leaves], flat_specs * len(trees), mesh)
    norms: dict[str, dict[str, Array]] = {}
    for position, name in enumerate(trees):
        own = squares[position * len(flat_labels) : (position + 1) * len(flat_labels)]
        norms[name] = {
            group: jnp.sqrt(
                sum(
                    (s for s, label in zip(own, flat_labels, strict=True) if label == group),
                    start=jnp.zeros((), jnp.float32),
                )
            )
            for group in GROUPS
        }
    return norms


def _leaves(tree: Any) -> list[Any]:
    return jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, jax.sharding.PartitionSpec))
