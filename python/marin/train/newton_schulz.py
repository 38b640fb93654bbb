"""Orthogonalization of many matrices at once, spread over the devices that hold one model.

Every replica does all of it: its results would take longer over the network between replicas than
they take to make. Shapes: R rows and C columns of one matrix, R <= C after orientation; n devices
of a replica; M matrices on each.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import prod

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from marin.model.groups import NEWTON_SCHULZ_STEPS

# The quintic that maps singular values of [0, 1] fastest towards 1 (Jordan et al. 2024, Muon).
_A, _B, _C = 3.4445, -4.7750, 2.0315
_TINY = 1e-30
_REPLICA = "replica"


def orthogonalize(stack: Float[Array, "*stack R C"]) -> Float[Array, "*stack R C"]:
    """Newton-Schulz steps on each matrix: all singular values come near 1.

    A zero matrix stays zero. The Gram matrix is that of the rows, so R <= C is the cheap side.
    """
    norm = jnp.sqrt(jnp.sum(jnp.square(stack), axis=(-2, -1), keepdims=True))

    def step(_: int, x: Array) -> Array:
        gram = x @ x.mT
        return _A * x + (_B * gram + _C * (gram @ gram)) @ x

    done: Array = jax.lax.fori_loop(0, NEWTON_SCHULZ_STEPS, step, stack / jnp.maximum(norm, _TINY))
    return done


def orthogonalize_all(matrices: Sequence[Array], specs: Sequence[P], mesh: Mesh) -> list[Array]:
    """Orthogonalizes the trailing two dimensions of every array, which lies as its spec says.

    Left alone, devices would repeat the work on matrices that are cut or whole on all of them.
    Instead whole matrices change places: each device gets its share of every stack, works on all
    that have the same shape in one go, and gives them back. Expert stacks that are cut along
    [layers, experts] do not move.
    """
    groups: dict[tuple[int, int], list[int]] = {}
    spread = [_spread(matrix, spec, mesh) for matrix, spec in zip(matrices, specs, strict=True)]
    for index, stack in enumerate(spread):
        groups.setdefault((stack.shape[-2], stack.shape[-1]), []).append(index)
    results: dict[int, Array] = {}
    for members in groups.values():
        stacks = [spread[index] for index in members]
        done = _constrain(orthogonalize(jnp.concatenate(stacks, axis=1)), mesh, _apart(mesh))
        ends = list(accumulate(stack.shape[1] for stack in stacks))
        for index, part in zip(members, jnp.split(done, ends[:-1], axis=1), strict=True):
            results[index] = _give_back(part, matrices[index].shape, specs[index], mesh)
    return [results[index] for index in range(len(matrices))]


def _spread(matrix: Array, spec: P, mesh: Mesh) -> Float[Array, "n M R C"]:
    """The matrices of an array as [n, M, R, C], M of them whole on each device, padded by zeros."""
    shards, devices = _expert_shards(spec, mesh), mesh.size // mesh.shape.get(_REPLICA, 1)
    if shards > 1:
        matrix = jnp.swapaxes(matrix, 0, 1)
    stack = matrix.reshape(shards, -1, *matrix.shape[-2:])
    # Each shard of experts by itself: padded as a whole, the experts of one would lie on another.
    padding = -stack.shape[1] % (devices // shards)
    stack = jnp.pad(stack, ((0, 0), (0, padding), (0, 0), (0, 0)))
    if shards == 1:
        stack = _constrain(stack, mesh, P(None, None, *_trailing(spec, matrix.ndim)))
    if stack.shape[-2] > stack.shape[-1]:
        stack = stack.mT
    apart = stack.reshape(devices, -1, *stack.shape[-2:])
    return _constrain(apart, mesh, _apart(mesh))


def _give_back(part: Float[Array, "n M R C"], shape: tuple[int, ...], spec: P, mesh: Mesh) -> Array:
    """The inverse of `_spread` for an array of this shape and spec."""
    *leading, rows, columns = shape
    shards = _expert_shards(spec, mesh)
    stack = part.reshape(shards, -1, *part.shape[-2:])
    if rows > columns:
        stack = stack.mT
    if shards == 1:
        # Cut while it is padded: a slice along a dimension that lies cut would move data twice.
        stack = _constrain(stack, mesh, P(None, None, *_trailing(spec, len(shape))))
        return stack[0, : prod(leading)].reshape(shape)
    layers, experts = leading
    stack = stack[:, : layers * experts // shards].reshape(experts, layers, rows, columns)
    return _constrain(jnp.swapaxes(stack, 0, 1), mesh, spec)


def _expert_shards(spec: P, mesh: Mesh) -> int:
    """Into how many parts a [layers, experts, R, C] of this spec is cut along its experts."""
    size: int = mesh.shape[spec[1]] if len(spec) == 4 and spec[1] is not None else 1
    return size


def _trailing(spec: P, ndim: int) -> tuple[object, object]:
    full = (*spec, *(None,) * (ndim - len(spec)))
    return full[-2], full[-1]


def _apart(mesh: Mesh) -> P:
    """Over a replica's devices, those of one expert shard side by side as in the experts' specs."""
    axes = (name for name in mesh.axis_names if name != _REPLICA)
    return P(tuple(sorted(axes, key=lambda name: name != "expert")))


def _constrain(x: Array, mesh: Mesh, spec: P) -> Array:
    laid_out: Array = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    return laid_out
