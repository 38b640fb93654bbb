"""Exact counts, summed over the mesh."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from marin.dispatch.types import Routing, Stats


def count(
    routing: Routing,
    lost_sender: Bool[Array, "T K"],
    lost_receiver: Bool[Array, "T K"],
    rows_computed: Int[Array, ""],
    *,
    num_experts: int,
    num_sources: int,
    axes: tuple[str, ...],
) -> Stats:
    """The statistics of all devices of `axes`, from what each of them saw.

    Two all-reduces of a few numbers; `device_rows` holds this device's own count as [1, 1].
    """
    valid = routing.valid[:, None] & jnp.ones(routing.experts.shape, bool)
    lost = lost_sender | lost_receiver
    weights = jax.lax.stop_gradient(routing.weights.astype(jnp.float32))
    scalars = jnp.stack(
        [
            valid.sum(dtype=jnp.int32),
            lost_sender.sum(dtype=jnp.int32),
            lost_receiver.sum(dtype=jnp.int32),
            (routing.valid & lost.all(axis=1)).sum(dtype=jnp.int32),
        ]
    )
    integers = [scalars, _histogram(routing.experts, valid, num_experts)]
    if routing.source is not None:
        source = jnp.broadcast_to(routing.source[:, None], valid.shape)
        integers += [_histogram(source, mask, num_sources) for mask in (valid, lost)]
    else:
        integers += [jnp.zeros(num_sources, jnp.int32)] * 2
    total = jax.lax.psum(jnp.concatenate(integers), axes)
    floats = [jnp.sum(weights, where=valid), jnp.sum(weights, where=lost)]
    weight, weight_lost = jax.lax.psum(jnp.stack(floats), axes)
    ends = (4, 4 + num_experts, 4 + num_experts + num_sources)
    counts, load, source_assigned, source_dropped = jnp.split(total, ends)
    rows = rows_computed.reshape(1, 1)
    return Stats(*_four(counts), weight, weight_lost, load, rows, source_assigned, source_dropped)


def _four(counts: Int[Array, " 4"]) -> tuple[Array, Array, Array, Array]:
    return counts[0], counts[1], counts[2], counts[3]


def _histogram(
    values: Int[Array, "T K"], counted: Bool[Array, "T K"], size: int
) -> Int[Array, " size"]:
    index = jnp.where(counted & (values >= 0), values, size)
    return jnp.zeros(size, jnp.int32).at[index.reshape(-1)].add(1, mode="drop")
