"""Sums over sharded arrays with one reduction for all of them.

Every partial sum of every array goes into one vector per set of mesh axes, so that a tree of a
hundred parameters costs one or two all-reduces and not a hundred.
"""

from collections.abc import Sequence
from math import prod

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

Axes = tuple[str, ...]


def matrix_dots(
    pairs: Sequence[tuple[Array, Array]], specs: Sequence[P], mesh: Mesh
) -> list[Float[Array, "*stack"]]:
    """Sum of products over the trailing two dimensions, in float32: one number per matrix.

    Both arrays of a pair lie as its spec says; the sums are complete over all shards.
    """
    ends = [
        (_full(spec, a.ndim)[:-2], _full(spec, a.ndim)[-2:])
        for (a, _), spec in zip(pairs, specs, strict=True)
    ]
    return _reduce(
        pairs, specs, [P(*lead) for lead, _ in ends], [_axes(t) for _, t in ends], 2, mesh
    )


def dots(
    pairs: Sequence[tuple[Array, Array]], specs: Sequence[P], mesh: Mesh
) -> list[Float[Array, ""]]:
    """Sum of products over all of each pair of arrays, in float32."""
    return _reduce(pairs, specs, [P() for _ in specs], [_axes(spec) for spec in specs], None, mesh)


def _reduce(
    pairs: Sequence[tuple[Array, Array]],
    specs: Sequence[P],
    out_specs: list[P],
    axes: list[Axes],
    trailing: int | None,
    mesh: Mesh,
) -> list[Array]:
    def local(blocks: list[tuple[Array, Array]]) -> list[Array]:
        sums = [_local_dot(a, b, trailing) for a, b in blocks]
        results = list(sums)
        for group in dict.fromkeys(axes):
            members = [index for index, names in enumerate(axes) if names == group]
            if not group:
                continue
            vector = jnp.concatenate([sums[index].reshape(-1) for index in members])
            vector = jax.lax.psum(vector, group)
            start = 0
            for index in members:
                size = prod(sums[index].shape)
                results[index] = vector[start : start + size].reshape(sums[index].shape)
                start += size
        return results

    in_specs = [(spec, spec) for spec in specs]
    mapped = jax.shard_map(local, mesh=mesh, in_specs=(in_specs,), out_specs=out_specs)
    results: list[Array] = mapped(list(pairs))
    return results


def _local_dot(a: Array, b: Array, trailing: int | None) -> Array:
    product = a.astype(jnp.float32) * b.astype(jnp.float32)
    axes = None if trailing is None else tuple(range(-trailing, 0))
    return jnp.sum(product, axis=axes)


def _full(spec: P, ndim: int) -> tuple[object, ...]:
    return (*spec, *(None,) * (ndim - len(spec)))


def _axes(entries: Sequence[object] | P) -> Axes:
    """The mesh axes that cut any of these dimensions."""
    names: list[str] = []
    for entry in entries:
        if isinstance(entry, tuple):
            names.extend(entry)
        elif isinstance(entry, str):
            names.append(entry)
    return tuple(names)
