"""Striping: the rows of all sequences interleaved over an expert-parallel group.

Neighbouring tokens of one document like the same experts, and a device holds few documents when
rows are long, so the loads of its pools scatter like sums of few large parts. After striping every
device holds every n-th token of every device of its group: its loads are the group's, whatever the
row length. The price is one exchange of latent rows before dispatch and one after, 1 / K of the
rows that dispatch itself moves.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from marin.dispatch.exchange import exchange
from marin.dispatch.types import Routing


def stripe(
    x: Float[Array, "T w"], routing: Routing, axis: str, devices: int
) -> tuple[Float[Array, "T w"], Routing]:
    """Token t of every device moves to device t mod n, with its routing, in one all-to-all.

    T is a multiple of n.
    """
    flags = [routing.valid] if routing.source is None else [routing.valid, routing.source]
    side = jnp.stack([f.astype(jnp.int32) for f in flags], axis=1)
    arrays = (x, routing.experts, routing.weights, side)
    x, experts, weights, side = exchange(tuple(_deal(a, devices) for a in arrays), axis)
    source = None if routing.source is None else side[:, 1]
    return x, Routing(experts, weights, side[:, 0] > 0, source)


def unstripe(y: Float[Array, "T w"], axis: str, devices: int) -> Float[Array, "T w"]:
    """The inverse of `stripe` for one array."""
    (y,) = exchange((y,), axis)
    return y.reshape(devices, -1, y.shape[1]).swapaxes(0, 1).reshape(y.shape)


def _deal(a: Shaped[Array, "T c"], devices: int) -> Shaped[Array, "T c"]:
    return a.reshape(-1, devices, a.shape[1]).swapaxes(0, 1).reshape(a.shape)
