"""The attention of one layer, local or global by a flag that is known only when it runs."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float

from marin.model.attend import attend
from marin.model.batch import Context
from marin.model.config import HeroConfig
from marin.model.conv import ShortConv
from marin.model.init import normal
from marin.model.norm import RMSNorm
from marin.model.product import product
from marin.model.rope import rotate

_SMALL = 1e-12
"""Least squared length of a value by which an output is divided."""


def exclude_self(
    output: Float[Array, "B L H D"], value: Float[Array, "B L K D"]
) -> Float[Array, "B L H D"]:
    """Removes from each head's output its component along the value of its own position."""
    shape = output.shape
    out = output.reshape(*value.shape[:3], -1, shape[-1])
    v = value[:, :, :, None, :]
    along = jnp.sum(out * v, axis=-1, keepdims=True, dtype=jnp.float32)
    squared = jnp.sum(jnp.square(v), axis=-1, keepdims=True, dtype=jnp.float32)
    share = (along / jnp.maximum(squared, _SMALL)).astype(out.dtype)
    return (out - share * v).reshape(shape)


class Attention(nnx.Module):
    """Grouped-query attention with QK norm, half-RoPE, self-exclusion, a gate per head and short
    convolutions on the keys and on the output.

    A global layer has no rotation, no window, and reads the first `kv_global` stored heads.
    """

    def __init__(self, config: HeroConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        d, width = config.hidden, config.heads * config.head_dim
        kv_width = config.kv_local * config.head_dim
        self.query = nnx.Param(normal(rngs, config, (d, width)))
        self.key = nnx.Param(normal(rngs, config, (d, kv_width)))
        self.value = nnx.Param(normal(rngs, config, (d, kv_width)))
        self.output = nnx.Param(normal(rngs, config, (width, d)))
        self.gate = nnx.Param(jnp.zeros((d, config.heads), jnp.float32))
        self.query_norm = RMSNorm(config.head_dim, config.norm_epsilon)
        self.key_norm = RMSNorm(config.head_dim, config.norm_epsilon)
        self.key_conv = ShortConv(kv_width, config.conv_taps)
        self.output_conv = ShortConv(d, config.conv_taps)

    def __call__(
        self, x: Float[Array, "B L d"], context: Context, is_global: Bool[Array, ""]
    ) -> Float[Array, "B L d"]:
        config = self.config
        query, value = self.queries(x, context.qk_scale), self.values(x)
        key = self.keys(self.key_conv(self.raw_keys(x), context.tap_masks))

        def local_layer(q: Array, k: Array, v: Array) -> Array:
            q, k = rotate(q, context.angles), rotate(k, context.angles)
            return self._attend(q, k, v, context, config.window)

        def global_layer(q: Array, k: Array, v: Array) -> Array:
            stored = slice(0, config.kv_global)
            return self._attend(q, k[:, :, stored], v[:, :, stored], context, None)

        out = jax.lax.cond(is_global, global_layer, local_layer, query, key, value)
        return self.output_conv(self.mix_heads(out, x), context.tap_masks)

    def queries(
        self, x: Float[Array, "B L d"], qk_scale: float | Float[Array, ""]
    ) -> Float[Array, "B L H D"]:
        """Normed queries times their multiplier, not yet rotated."""
        normed = self.query_norm(self._heads(product("bld,dk->blk", x, self.query[...])))
        # In float32: rounded to bfloat16 the multiplier itself would be off in every logit.
        scaled = normed.astype(jnp.float32) * (self.config.query_multiplier * qk_scale)
        return scaled.astype(x.dtype)

    def raw_keys(self, x: Float[Array, "B L d"]) -> Float[Array, "B L K*D"]:
        """What the key convolution reads."""
        return product("bld,dk->blk", x, self.key[...])

    def keys(self, convolved: Float[Array, "B L K*D"]) -> Float[Array, "B L K D"]:
        """Normed keys, not yet rotated, from the key convolution's output."""
        return self.key_norm(self._heads(convolved))

    def values(self, x: Float[Array, "B L d"]) -> Float[Array, "B L K D"]:
        return self._heads(product("bld,dk->blk", x, self.value[...]))

    def mix_heads(
        self, out: Float[Array, "B L H D"], x: Float[Array, "B L d"]
    ) -> Float[Array, "B L d"]:
        """Gated heads through the output projection; what the output convolution reads."""
        out *= (2 * jax.nn.sigmoid(product("bld,dh->blh", x, self.gate[...])))[..., None]
        return product("blk,kd->bld", out.reshape(*x.shape[:2], -1), self.output[...])

    def _heads(self, x: Float[Array, "B L width"]) -> Float[Array, "B L heads D"]:
        return x.reshape(*x.shape[:2], -1, self.config.head_dim)

    def _attend(
        self, q: Array, k: Array, v: Array, context: Context, window: int | None
    ) -> Float[Array, "B L H D"]:
        backend = self.config.attention
        out = attend(q, k, v, context.segment_ids, window=window, backend=backend)
        return exclude_self(out, v)
