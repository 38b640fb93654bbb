"""`combine_rows` on a GPU, and its backward pass in one sweep.

Forward: one program sums `_TOKENS` tokens over a tile of columns in registers; bytes moved:
(present rows + T) w itemsize. Backward: one program reads `_ROWS` buffer rows and the gradients of
their tokens once, and writes both the rows' gradients and the dot products that the weights'
gradients are; bytes moved: 3 R w itemsize.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from marin.kernels.backend import power_of_two_tile

_TOKENS = 4
_ROWS = 8
_COLUMNS = 512


def combine_rows(
    rows: Float[Array, "R w"],
    slots: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    dtype: DTypeLike,
    *,
    interpret: bool = False,
) -> Float[Array, "T w"]:
    """As `reference.combine_rows`; w a multiple of 64."""
    (tokens, k), width = slots.shape, rows.shape[1]
    tile = power_of_two_tile(width, _COLUMNS)

    def kernel(rows_ref, slots_ref, weights_ref, out_ref) -> None:  # type: ignore[no-untyped-def]
        first = pl.program_id(0).astype(slots.dtype) * _TOKENS
        token = first + jnp.arange(_TOKENS, dtype=slots.dtype)
        columns = pl.program_id(1) * tile + jnp.arange(tile)[None, :]
        inside = token < tokens
        total = jnp.zeros((_TOKENS, tile), jnp.float32)
        for j in range(k):
            slot = plgpu.load(slots_ref.at[token, j], mask=inside, other=-1)
            here = (jnp.maximum(slot, 0)[:, None], columns)
            weight = plgpu.load(weights_ref.at[token, j], mask=inside, other=0)
            present = jnp.broadcast_to((slot >= 0)[:, None], (_TOKENS, tile))
            row = plgpu.load(rows_ref.at[here], mask=present, other=0)
            total += weight[:, None] * row.astype(jnp.float32)
        stored = jnp.broadcast_to(inside[:, None], (_TOKENS, tile))
        plgpu.store(out_ref.at[token[:, None], columns], total.astype(dtype), mask=stored)

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((tokens, width), dtype),
        grid=(pl.cdiv(tokens, _TOKENS), width // tile),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="combine_rows",
    )
    result: Array = call(rows, slots, weights.astype(jnp.float32))
    return result


def backward(
    rows: Float[Array, "R w"],
    dy: Float[Array, "T w"],
    sources: Int[Array, " R"],
    scale: Float[Array, " R"],
    *,
    interpret: bool = False,
) -> tuple[Float[Array, "R w"], Float[Array, " R"]]:
    """As `reference.backward`; w a multiple of 64."""
    count, width = rows.shape
    tile = power_of_two_tile(width, _COLUMNS)

    def kernel(rows_ref, dy_ref, sources_ref, scale_ref, out_ref, dots_ref) -> None:  # type: ignore[no-untyped-def]
        row = pl.program_id(0).astype(sources.dtype) * _ROWS + jnp.arange(
            _ROWS, dtype=sources.dtype
        )
        inside = row < count
        source = plgpu.load(sources_ref.at[row], mask=inside, other=-1)
        factor = plgpu.load(scale_ref.at[row], mask=inside, other=0)
        present = jnp.broadcast_to((source >= 0)[:, None], (_ROWS, tile))
        stored = jnp.broadcast_to(inside[:, None], (_ROWS, tile))

        def step(i: Array, dots: Array) -> Array:
            columns = i * tile + jnp.arange(tile)[None, :]
            other = plgpu.load(
                dy_ref.at[jnp.maximum(source, 0)[:, None], columns], mask=present, other=0
            )
            other = other.astype(jnp.float32)
            value = plgpu.load(rows_ref.at[row[:, None], columns], mask=present, other=0)
            gradient = (factor[:, None] * other).astype(rows.dtype)
            plgpu.store(out_ref.at[row[:, None], columns], gradient, mask=stored)
            return dots + jnp.sum(value.astype(jnp.float32) * other, axis=1)

        dots = jax.lax.fori_loop(0, width // tile, step, jnp.zeros(_ROWS, jnp.float32))
        plgpu.store(dots_ref.at[row], dots, mask=inside)

    call = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct((count, width), rows.dtype),
            jax.ShapeDtypeStruct((count,), jnp.float32),
        ),
        grid=(pl.cdiv(count, _ROWS),),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
        interpret=interpret,
        name="combine_rows_backward",
    )
    gradient, dots = call(rows, dy, sources, scale)
    return gradient, dots
