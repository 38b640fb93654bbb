"""Initial weights."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from marin.model.config import HeroConfig


def normal(rngs: nnx.Rngs, config: HeroConfig, shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Float32 normal values of standard deviation `init_scale / sqrt(hidden)`."""
    deviation = config.init_scale / config.hidden**0.5
    values: Array = deviation * jax.random.normal(rngs.params(), shape, jnp.float32)
    return values
