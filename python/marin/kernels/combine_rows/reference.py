"""The meaning of `combine_rows`."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int


def combine_rows(
    rows: Float[Array, "R w"],
    slots: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    dtype: DTypeLike,
) -> Float[Array, "T w"]:
    """Token `t` is the sum over `j` of `weights[t, j] * rows[slots[t, j]]`; slot -1 adds nothing.

    Summed in float32 in the order of `j` and rounded once to `dtype`.
    """
    total = jnp.zeros((slots.shape[0], rows.shape[1]), jnp.float32)
    for j in range(slots.shape[1]):
        row = rows.at[slots[:, j]].get(mode="fill", fill_value=0, wrap_negative_indices=False)
        total += weights[:, j, None] * row.astype(jnp.float32)
    return total.astype(dtype)


def backward(
    rows: Float[Array, "R w"],
    dy: Float[Array, "T w"],
    sources: Int[Array, " R"],
    scale: Float[Array, " R"],
) -> tuple[Float[Array, "R w"], Float[Array, " R"]]:
    """Per row `scale[r] * dy[sources[r]]` in the type of `rows`, and its float32 dot product with
    `dy[sources[r]]`; both zero where `sources[r]` is -1."""
    other = dy.at[sources].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    other = other.astype(jnp.float32)
    gradient = (scale[:, None] * other).astype(rows.dtype)
    return gradient, jnp.sum(rows.astype(jnp.float32) * other, axis=1)
