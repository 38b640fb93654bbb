"""The meaning of `permute_rows`."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int


def permute_rows(
    x: Float[Array, "T w"],
    sources: Int[Array, " R"],
    scale: Float[Array, " R"] | None = None,
) -> Float[Array, "R w"]:
    """Row `r` is `x[sources[r]]`, times `scale[r]` if given; zero where `sources[r]` is -1.

    The product is taken in float32 and rounded once to the type of `x`.
    """
    rows = x.at[sources].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    if scale is None:
        return jnp.asarray(rows)
    return (rows.astype(jnp.float32) * scale[:, None]).astype(x.dtype)
