"""Masked attention over packed rows: the reference, and the choice between backends.

Every backend computes the same: a query sees the keys of its own document at or before its own
position, in a local layer only the last `window` of them. The scale `1 / sqrt(D)` is applied here.
"""

import functools
import logging
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.errors import MarinError

QUERY_BLOCK = 512
"""Queries of the reference whose scores exist at one time."""
CUDNN_MAX_LENGTH = 8192
"""cuDNN takes document boundaries as a mask of length squared: 128 MiB a row at this length."""
_MASKED = -1e30

log = logging.getLogger(__name__)


def attend(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L K D"],
    value: Float[Array, "B L K D"],
    segment_ids: Int[Array, "B L"],
    *,
    window: int | None,
    backend: str,
) -> Float[Array, "B L H D"]:
    """Attention with documents, causality and an optional window; query head h reads key-value
    head `h // (H / K)`. Padding positions attend among themselves, so that they stay finite.
    """
    query = (query.astype(jnp.float32) * query.shape[-1] ** -0.5).astype(query.dtype)
    if window is not None and window >= query.shape[1]:
        window = None
    if choose(backend, query.shape[1], query.shape[3], query.dtype) == "cudnn":
        return fused(query, key, value, segment_ids, window, "cudnn")
    return _reference(query, key, value, segment_ids, window)


@functools.cache
def choose(backend: str, length: int, head_dim: int, dtype: jnp.dtype) -> str:
    """The backend that will run, logged once per case.

    `auto` takes cuDNN where it can honour everything and the reference elsewhere; a backend asked
    for by name that cannot is a `MarinError`.
    """
    obstacle = _cudnn_obstacle(length, head_dim, dtype)
    if backend == "cudnn" and obstacle:
        raise MarinError(f"model: attention = 'cudnn': {obstacle}; use 'reference' or 'auto'")
    chosen = "reference" if backend == "reference" or obstacle else "cudnn"
    reason = f" (cuDNN: {obstacle})" if backend == "auto" and obstacle else ""
    log.info("attention of length %d: %s%s", length, chosen, reason)
    return chosen


def _cudnn_obstacle(length: int, head_dim: int, dtype: jnp.dtype) -> str:
    if jax.default_backend() != "gpu":
        return f"needs a GPU, found {jax.default_backend()}"
    if dtype not in (jnp.bfloat16, jnp.float16):
        return f"needs bfloat16, found {dtype}"
    if head_dim > 128 or head_dim % 8:
        return f"needs heads of a multiple of 8 up to 128, found {head_dim}"
    if length % 2:
        return f"needs rows of an even length, found {length}"
    if length > CUDNN_MAX_LENGTH:
        return f"document masks of rows over {CUDNN_MAX_LENGTH} do not fit, found {length}"
    return ""


def fused(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L K D"],
    value: Float[Array, "B L K D"],
    segment_ids: Int[Array, "B L"],
    window: int | None,
    implementation: Literal["cudnn", "xla"],
) -> Float[Array, "B L H D"]:
    """Scaled queries through JAX's own attention. `xla` gives the same arguments the meaning that
    JAX documents, on any device and with all scores at one time, so that they can be checked
    where there is no cuDNN.
    """
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=(segment_ids[:, None, :, None] == segment_ids[:, None, None, :]),
        scale=1.0,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),
        implementation=implementation,
    )


def _reference(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L K D"],
    value: Float[Array, "B L K D"],
    segment_ids: Int[Array, "B L"],
    window: int | None,
) -> Float[Array, "B L H D"]:
    """Blocks of Q queries one after another, recomputed in the backward pass; a local layer reads
    just the T keys that its block can see. Softmax in float32.

    Heads lead and the G heads of a group are rows of one matrix, which XLA multiplies about twice
    as fast on CPU as with positions leading.
    """
    batch, length, heads, dim = query.shape
    kv_heads = key.shape[2]
    # Blocks as long as the window: twice the keys that are seen, not the whole row.
    block = min(QUERY_BLOCK, length, window or length)
    blocks = -(-length // block)
    after = blocks * block - length
    before = 0 if window is None else window - 1
    span = length + after if window is None else before + block

    def padded(x: Array, left: int) -> Array:
        return jnp.pad(x, ((0, 0), (left, after)) + ((0, 0),) * (x.ndim - 2))

    # Segment -1 pads the keys: no query is in it.
    key_segments = padded(segment_ids + 1, before) - 1
    keys, values = (jnp.moveaxis(padded(x, before), 1, 2) for x in (key, value))
    queries = padded(query, 0).reshape(batch, blocks, block, kv_heads, -1, dim)
    queries = queries.transpose(1, 0, 3, 4, 2, 5)
    query_segments = jnp.moveaxis(padded(segment_ids, 0).reshape(batch, blocks, block), 1, 0)

    @jax.checkpoint
    def one_block(
        index: Int[Array, ""], q: Float[Array, "B K G Q D"], q_segments: Int[Array, "B Q"]
    ) -> Float[Array, "B K G Q D"]:
        start = jnp.int32(0) if window is None else index * block
        k, v = (jax.lax.dynamic_slice_in_dim(x, start, span, 2) for x in (keys, values))
        k_segments = jax.lax.dynamic_slice_in_dim(key_segments, start, span, 1)
        q_at = index * block + jnp.arange(block)
        k_at = start - before + jnp.arange(span)
        distance = q_at[:, None] - k_at[None, :]
        seen = distance >= 0
        if window is not None:
            seen &= distance < window
        mask = (q_segments[:, :, None] == k_segments[:, None, :]) & seen
        rows = q.reshape(batch, kv_heads, -1, dim)
        scores = jnp.einsum("bkrd,bktd->bkrt", rows, k, preferred_element_type=jnp.float32)
        scores = scores.reshape(*q.shape[:-1], span)
        weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, _MASKED), axis=-1)
        weights = weights.astype(v.dtype).reshape(batch, kv_heads, -1, span)
        return jnp.einsum("bkrt,bktd->bkrd", weights, v).reshape(q.shape)

    if blocks == 1:
        outs = one_block(jnp.int32(0), queries[0], query_segments[0])[None]
    else:
        step = (jnp.arange(blocks), queries, query_segments)
        _, outs = jax.lax.scan(lambda _, inputs: (None, one_block(*inputs)), None, step)
    out = outs.transpose(1, 0, 4, 2, 3, 5).reshape(batch, -1, heads, dim)
    unpadded: Array = out[:, :length]
    return unpadded
