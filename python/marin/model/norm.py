"""RMS norm, and the gated norm that follows it on the residual stream."""

import functools

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from marin.model.config import HeroConfig
from marin.model.init import normal
from marin.model.product import product


@functools.partial(jax.checkpoint, static_argnums=(2,))
def rms_norm(
    x: Float[Array, "... width"], gain: Float[Array, "width"], epsilon: float
) -> Float[Array, "... width"]:
    """`gain * x / sqrt(mean(x^2) + epsilon)` over the last axis, computed in float32.

    The backward pass keeps x as it came, not its float32 copies.
    """
    x32 = x.astype(jnp.float32)
    scale = jax.lax.rsqrt(jnp.mean(jnp.square(x32), axis=-1, keepdims=True) + epsilon)
    return (x32 * scale * gain).astype(x.dtype)


class RMSNorm(nnx.Module):
    """RMS norm with a learnable gain that starts at one."""

    def __init__(self, width: int, epsilon: float) -> None:
        self.epsilon = epsilon
        self.gain = nnx.Param(jnp.ones((width,), jnp.float32))

    def __call__(self, x: Float[Array, "... width"]) -> Float[Array, "... width"]:
        normed: Array = rms_norm(x, self.gain[...], self.epsilon)
        return normed


class GatedNorm(nnx.Module):
    """`n * sigmoid(silu(n W_down) W_up)` with `n` the RMS norm of x and a low rank in between."""

    def __init__(self, config: HeroConfig, rngs: nnx.Rngs) -> None:
        self.norm = RMSNorm(config.hidden, config.norm_epsilon)
        self.down = nnx.Param(normal(rngs, config, (config.hidden, config.gate_rank)))
        self.up = nnx.Param(normal(rngs, config, (config.gate_rank, config.hidden)))

    def __call__(self, x: Float[Array, "B L d"]) -> Float[Array, "B L d"]:
        x = self.norm(x)
        inner = jax.nn.silu(product("bld,dr->blr", x, self.down[...]))
        gate = product("blr,rd->bld", inner, self.up[...])
        return x * jax.nn.sigmoid(gate)
