"""Masked attention over packed rows: the reference, and the choice between backends.

Every backend computes the same: a query sees the keys of its own document at or before its own
position, in a local layer only the last `window` of them. The scale `1 / sqrt(D)` is applied here.
"""

import functools
import logging

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.errors import MarinError

QUERY_BLOCK = 256
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
    query = query * jnp.asarray(query.shape[-1] ** -0.5, query.dtype)
    if window is not None and window >= query.shape[1]:
        window = None
    if choose(backend, query.shape[1], query.shape[3], query.dtype) == "cudnn":
        return _cudnn(query, key, value, segment_ids, window)
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
    if length > CUDNN_MAX_LENGTH:
        return f"document masks of rows over {CUDNN_MAX_LENGTH} do not fit, found {length}"
    return ""


def _cudnn(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L K D"],
    value: Float[Array, "B L K D"],
    segment_ids: Int[Array, "B L"],
    window: int | None,
) -> Float[Array, "B L H D"]:
    return jax.nn.dot_product_attention(
        query,
        key,
        value,
        mask=(segment_ids[:, None, :, None] == segment_ids[:, None, None, :]),
        scale=1.0,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),
        implementation="cudnn",
    )


def _reference(
    query: Float[Array, "B L H D"],
    key: Float[Array, "B L K D"],
    value: Float[Array, "B L K D"],
    segment_ids: Int[Array, "B L"],
    window: int | None,
) -> Float[Array, "B L H D"]:
    """Blocks of queries one after another, recomputed in the backward pass; a local layer reads
    just the keys that its block can see. Softmax in float32.
    """
    batch, length, heads, dim = query.shape
    groups = heads // key.shape[2]
    block = min(QUERY_BLOCK, length)
    blocks = -(-length // block)
    after = blocks * block - length
    before = 0 if window is None else window - 1
    span = length + after if window is None else before + block

    def padded(x: Array, left: int) -> Array:
        return jnp.pad(x, ((0, 0), (left, after)) + ((0, 0),) * (x.ndim - 2))

    # Segment -1 pads the keys: no query is in it.
    keys, values = padded(key, before), padded(value, before)
    key_segments = padded(segment_ids + 1, before) - 1
    queries = padded(query, 0).reshape(batch, blocks, block, heads // groups, groups, dim)
    query_segments = padded(segment_ids, 0).reshape(batch, blocks, block)

    @jax.checkpoint
    def one_block(
        index: Int[Array, ""], q: Float[Array, "B Q K G D"], q_segments: Int[Array, "B Q"]
    ) -> Float[Array, "B Q K G D"]:
        start = jnp.int32(0) if window is None else index * block
        k, v, k_segments = (
            jax.lax.dynamic_slice_in_dim(x, start, span, 1) for x in (keys, values, key_segments)
        )
        q_at = index * block + jnp.arange(block)
        k_at = start - before + jnp.arange(span)
        distance = q_at[:, None] - k_at[None, :]
        seen = distance >= 0
        if window is not None:
            seen &= distance < window
        mask = (q_segments[:, :, None] == k_segments[:, None, :]) & seen
        scores = jnp.einsum("bqkgd,btkd->bkgqt", q, k, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, _MASKED), axis=-1)
        mixed: Array = jnp.einsum("bkgqt,btkd->bqkgd", weights.astype(v.dtype), v)
        return mixed

    if blocks == 1:
        out: Array = one_block(jnp.int32(0), queries[:, 0], query_segments[:, 0])
        return out[:, :length].reshape(batch, length, heads, dim)

    def step(_: None, block_inputs: tuple[Array, Array, Array]) -> tuple[None, Array]:
        return None, one_block(*block_inputs)

    stacked = (jnp.arange(blocks), jnp.moveaxis(queries, 1, 0), jnp.moveaxis(query_segments, 1, 0))
    _, outs = jax.lax.scan(step, None, stacked)
    unpadded: Array = jnp.moveaxis(outs, 0, 1).reshape(batch, -1, heads, dim)[:, :length]
    return unpadded
