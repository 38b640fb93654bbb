"""Rows, and what must travel with them, in one all-to-all.

Metadata is appended to each row's own bytes, so it costs no second collective; payload rows are a
multiple of 16 bytes, so they stay aligned for vector loads. The payload is integers, so that no
pass of the compiler may widen, flush or canonicalize bits that are not numbers.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Shaped

ALIGNMENT = 16  # bytes


def payload_bytes(*columns: tuple[int, DTypeLike]) -> int:
    """Bytes of one payload row that carries arrays of these (width, dtype)."""
    size = sum(width * jnp.dtype(dtype).itemsize for width, dtype in columns)
    return -(-size // ALIGNMENT) * ALIGNMENT


def all_to_all(rows: Shaped[Array, "R c"], axis: str) -> Shaped[Array, "R c"]:
    """The i-th n-th of the rows goes to the i-th of the n devices of `axis`."""
    moved: Array = jax.lax.all_to_all(rows, axis, split_axis=0, concat_axis=0, tiled=True)
    return moved


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def exchange(arrays: tuple[Array, ...], axis: str) -> tuple[Array, ...]:
    """Sends the i-th n-th of the rows of all `arrays` to the i-th of the n devices of `axis`.

    Arrays are [R, width] of 2 or 4 bytes per element, R a multiple of n. Exchanging twice restores
    the order, so the gradient is the same exchange of the floating arrays' gradients. Bytes per
    device: R times `payload_bytes`, of which 1 / n stay.
    """
    word = jnp.dtype(f"uint{8 * min(a.dtype.itemsize for a in arrays)}")
    parts = [_to_words(a, word) for a in arrays]
    size = payload_bytes(*((a.shape[1], a.dtype) for a in arrays)) // word.itemsize
    spare = size - sum(p.shape[1] for p in parts)
    moved = all_to_all(jnp.pad(jnp.concatenate(parts, axis=1), ((0, 0), (0, spare))), axis)
    out, start = [], 0
    for a, p in zip(arrays, parts, strict=True):
        out.append(_from_words(moved[:, start : start + p.shape[1]], a.dtype))
        start += p.shape[1]
    return tuple(out)


def _to_words(a: Array, word: DTypeLike) -> Array:
    return jax.lax.bitcast_convert_type(a, word).reshape(a.shape[0], -1)


def _from_words(words: Array, dtype: DTypeLike) -> Array:
    per = jnp.dtype(dtype).itemsize // words.dtype.itemsize
    if per > 1:
        words = words.reshape(words.shape[0], -1, per)
    return jax.lax.bitcast_convert_type(words, dtype)


def _forward(arrays: tuple[Array, ...], axis: str) -> tuple[tuple[Array, ...], None]:
    return exchange(arrays, axis), None


def _backward(
    axis: str, _: None, cotangents: tuple[Float[Array, "R c"], ...]
) -> tuple[tuple[Array | None, ...]]:
    floats = tuple(c for c in cotangents if c.dtype != jax.dtypes.float0)
    moved = iter(exchange(floats, axis))
    return (tuple(None if c.dtype == jax.dtypes.float0 else next(moved) for c in cotangents),)


exchange.defvjp(_forward, _backward)
