"""`permute_rows` on a GPU: a copy whose reads follow an index.

One program moves `_ROWS` rows by a tile of columns, 16 bytes per thread and access. Bytes moved:
2 R w itemsize, plus the index. Pallas computes offsets in 64 bits for arrays past 2^32 bytes.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float, Int

from marin.kernels.backend import power_of_two_tile

_ROWS = 8
_COLUMNS = 512


def permute_rows(
    x: Float[Array, "T w"],
    sources: Int[Array, " R"],
    *,
    interpret: bool = False,
) -> Float[Array, "R w"]:
    """As `reference.permute_rows`; w a multiple of 64."""
    rows, width = sources.shape[0], x.shape[1]
    tile = power_of_two_tile(width, _COLUMNS)

    def kernel(x_ref, sources_ref, out_ref) -> None:  # type: ignore[no-untyped-def]
        row = pl.program_id(0).astype(sources.dtype) * _ROWS + jnp.arange(
            _ROWS, dtype=sources.dtype
        )
        columns = pl.program_id(1) * tile + jnp.arange(tile)[None, :]
        inside = row < rows
        source = plgpu.load(sources_ref.at[row], mask=inside, other=-1)
        present = jnp.broadcast_to((source >= 0)[:, None], (_ROWS, tile))
        values = plgpu.load(
            x_ref.at[jnp.maximum(source, 0)[:, None], columns], mask=present, other=0
        )
        stored = jnp.broadcast_to(inside[:, None], (_ROWS, tile))
        plgpu.store(out_ref.at[row[:, None], columns], values, mask=stored)

    call = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((rows, width), x.dtype),
        grid=(pl.cdiv(rows, _ROWS), width // tile),
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="permute_rows",
    )
    result: Array = call(x, sources)
    return result
