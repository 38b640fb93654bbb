"""Cross-entropy fused with the readout, one block of the vocabulary after another.

The forward pass keeps a running log-normalizer and the logit of the target; the backward pass
makes each block's logits again. Logits of all tokens against `block` entries exist at one time,
never against the whole vocabulary. Price: the readout's product is computed once more than in the
plain version. Sums are float32.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

_NEVER = -1e30
"""Logit of an entry that a clamped last block has in common with the block before."""

_Saved = tuple[
    Float[Array, "tokens d"], Float[Array, "V d"], Int[Array, "tokens"], Float[Array, "tokens"]
]
_Pair = tuple[Float[Array, "tokens"], Float[Array, "tokens"]]


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def cross_entropy(
    hidden: Float[Array, "tokens d"],
    readout: Float[Array, "V d"],
    targets: Int[Array, "tokens"],
    block: int,
) -> _Pair:
    """Per token, the negative log-likelihood of its target and the log-normalizer, in nats.

    The readout (float32) is rounded to the type of `hidden`; its gradient is not. Differentiable in
    `hidden` and `readout`.
    """
    return _forward(hidden, readout, targets, block)[0]


def _logits(
    hidden: Float[Array, "tokens d"], readout: Float[Array, "V d"], index: Int[Array, ""], size: int
) -> tuple[Int[Array, ""], Float[Array, "size d"], Float[Array, "tokens size"]]:
    """Start, weights and logits of block `index`. The last block starts early enough to be full;
    what it repeats is masked."""
    start = jnp.minimum(index * size, readout.shape[0] - size)
    weights = jax.lax.dynamic_slice_in_dim(readout, start, size, 0)
    logits = jnp.einsum("td,vd->tv", hidden, weights, preferred_element_type=jnp.float32)
    repeated = jnp.arange(size) < index * size - start
    return start, weights, jnp.where(repeated, _NEVER, logits)


def _forward(
    hidden: Float[Array, "tokens d"],
    readout: Float[Array, "V d"],
    targets: Int[Array, "tokens"],
    block: int,
) -> tuple[_Pair, _Saved]:
    readout = readout.astype(hidden.dtype)
    size = min(block, readout.shape[0])

    def step(
        carry: tuple[Array, Array, Array], index: Int[Array, ""]
    ) -> tuple[tuple[Array, Array, Array], None]:
        highest, total, target = carry
        start, _, logits = _logits(hidden, readout, index, size)
        peak = jnp.maximum(highest, jnp.max(logits, axis=-1))
        total = total * jnp.exp(highest - peak) + jnp.sum(jnp.exp(logits - peak[:, None]), axis=-1)
        hit = (targets - start)[:, None] == jnp.arange(size)
        target = jnp.maximum(target, jnp.max(jnp.where(hit, logits, _NEVER), axis=-1))
        return (peak, total, target), None

    low = jnp.full(targets.shape, _NEVER, jnp.float32)
    blocks = jnp.arange(-(-readout.shape[0] // size))
    (peak, total, target), _ = jax.lax.scan(step, (low, jnp.zeros_like(low), low), blocks)
    normalizer = peak + jnp.log(total)
    return (normalizer - target, normalizer), (hidden, readout, targets, normalizer)


def _backward(
    block: int, saved: _Saved, cotangents: _Pair
) -> tuple[Float[Array, "tokens d"], Float[Array, "V d"], None]:
    hidden, readout, targets, normalizer = saved
    of_loss, of_normalizer = cotangents
    size = min(block, readout.shape[0])

    def step(carry: tuple[Array, Array], index: Int[Array, ""]) -> tuple[tuple[Array, Array], None]:
        to_hidden, to_readout = carry
        start, weights, logits = _logits(hidden, readout, index, size)
        first_new = index * size - start
        entry = jnp.arange(size)
        hit = ((targets - start)[:, None] == entry) & (entry >= first_new)
        slope = (of_loss + of_normalizer)[:, None] * jnp.exp(logits - normalizer[:, None])
        slope = jnp.where(hit, slope - of_loss[:, None], slope).astype(hidden.dtype)
        to_hidden += jnp.einsum("tv,vd->td", slope, weights, preferred_element_type=jnp.float32)
        part = jnp.einsum("tv,td->vd", slope, hidden, preferred_element_type=jnp.float32)
        part += jax.lax.dynamic_slice_in_dim(to_readout, start, size, 0)
        return (to_hidden, jax.lax.dynamic_update_slice_in_dim(to_readout, part, start, 0)), None

    zeros = (jnp.zeros(hidden.shape, jnp.float32), jnp.zeros(readout.shape, jnp.float32))
    blocks = jnp.arange(-(-readout.shape[0] // size))
    (to_hidden, to_readout), _ = jax.lax.scan(step, zeros, blocks)
    return to_hidden.astype(hidden.dtype), to_readout, None


cross_entropy.defvjp(_forward, _backward)
