"""Rotary position embedding on the first half of each head."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def rope_angles(
    positions: Int[Array, "B L"], head_dim: int, theta: float
) -> Float[Array, "B L pairs"]:
    """Angles in radians of the `head_dim / 4` rotated pairs; pair i turns at `theta^(-i/pairs)`."""
    pairs = head_dim // 4
    frequencies = theta ** (-jnp.arange(pairs, dtype=jnp.float32) / pairs)
    return positions.astype(jnp.float32)[..., None] * frequencies


def rotate(
    x: Float[Array, "B L heads D"], angles: Float[Array, "B L pairs"]
) -> Float[Array, "B L heads D"]:
    """Turns coordinates (i, i + D/4) of each head by angle i; the second half of the head stays.

    Su et al., RoFormer, arXiv 2104.09864, with the two coordinates of a pair D/4 apart.
    """
    pairs = angles.shape[-1]
    cos = jnp.cos(angles)[:, :, None, :].astype(x.dtype)
    sin = jnp.sin(angles)[:, :, None, :].astype(x.dtype)
    first, second, rest = jnp.split(x, (pairs, 2 * pairs), axis=-1)
    return jnp.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)
