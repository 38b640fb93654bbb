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
    axes: tuple[str, ...],
) -> Stats:
    """The statistics of all devices of `axes`, from what each of them saw.

    Two all-reduces of a few numbers; `device_rows` holds this device's own count as [1, 1].
    """
    valid = routing.valid[:, None] & jnp.ones(routing.experts.shape, bool)
    lost = lost_sender | lost_receiver
    weights = jax.lax.stop_gradient(routing.weights.astype(jnp.float32))
    ids = jnp.where(valid, routing.experts, num_experts).reshape(-1)
    load = jnp.zeros(num_experts, jnp.int32).at[ids].add(1, mode="drop")
    integers = jnp.stack(
        [
            valid.sum(dtype=jnp.int32),
            lost_sender.sum(dtype=jnp.int32),
            lost_receiver.sum(dtype=jnp.int32),
            (routing.valid & lost.all(axis=1)).sum(dtype=jnp.int32),
        ]
    )
    floats = jnp.stack([jnp.sum(weights, where=valid), jnp.sum(weights, where=lost)])
    integers = jax.lax.psum(jnp.concatenate([integers, load]), axes)
    floats = jax.lax.psum(floats, axes)
    assigned, sender, receiver, tokens = integers[:4]
    weight, weight_lost = floats
    rows = rows_computed.reshape(1, 1)
    return Stats(assigned, sender, receiver, tokens, weight, weight_lost, integers[4:], rows)
