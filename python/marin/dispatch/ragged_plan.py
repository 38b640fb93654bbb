"""The index arithmetic of the ragged exchange, from one matrix that every device knows.

`sizes[s, d]` rows go from device s to device d. A sender's buffer holds its rows for device 0,
then 1, and so on without gaps; a receiver's buffer holds the rows from device 0, then 1, and so on
without gaps.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from marin.dispatch.admission import mix_bits


class Offsets(NamedTuple):
    """The arguments of `jax.lax.ragged_all_to_all` for one device, each [n] int32.

    input_offsets: where the rows for device i start here. send_sizes: how many. output_offsets:
    where they start in the buffer of device i. recv_sizes: how many come from device i.
    """

    input_offsets: Int[Array, " n"]
    send_sizes: Int[Array, " n"]
    output_offsets: Int[Array, " n"]
    recv_sizes: Int[Array, " n"]


def exclusive_cumsum(a: Int[Array, "..."], axis: int) -> Int[Array, "..."]:
    return jnp.cumsum(a, axis) - a


def offsets(sizes: Int[Array, "n n"], here: Int[Array, ""]) -> Offsets:
    """The offsets of device `here`. For the way back pass the transpose of `sizes`."""
    return Offsets(
        exclusive_cumsum(sizes, 1)[here],
        sizes[here],
        exclusive_cumsum(sizes, 0)[here],
        sizes[:, here],
    )


def fair_quotas(demand: Int[Array, "n n"], capacity: int) -> Int[Array, "n n"]:
    """How many rows each sender s may send to each destination d: max-min fair, never too few.

    Per destination the largest level L with `sum_s min(demand[s, d], L) <= capacity`; what is then
    left, fewer than n rows, goes one each to unsatisfied senders in an order that a hash of the
    demand decides, so no rank is favoured from step to step.
    """
    n = demand.shape[0]
    ascending = jnp.sort(demand, axis=0)
    below = exclusive_cumsum(ascending, 0)
    others = n - jnp.arange(n, dtype=jnp.int32)[:, None]
    # Division instead of the product others * ascending, which could overflow.
    fits = ascending <= (capacity - below) // others
    satisfied = fits.sum(axis=0, dtype=jnp.int32)
    granted = jnp.sum(jnp.where(fits, ascending, 0), axis=0)
    rest = capacity - granted
    level = jnp.where(satisfied < n, rest // jnp.maximum(n - satisfied, 1), jnp.max(demand))
    quota = jnp.minimum(demand, level)
    spare = capacity - quota.sum(axis=0)
    index = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), demand.shape)
    order = mix_bits(demand.reshape(-1), index.T.reshape(-1), index.reshape(-1)).reshape(n, n)
    hungry = demand > quota
    turn = jnp.argsort(jnp.where(hungry, order, jnp.uint32(0xFFFFFFFF)), axis=0, stable=True)
    place = jnp.argsort(turn, axis=0)
    return quota + (hungry & (place < spare)).astype(jnp.int32)
