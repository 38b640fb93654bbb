"""`rank_in_group` on a GPU without a sort and without a one-hot array.

A tile of `_TILE` assignments is ranked by comparing all of its pairs in registers. The last member
of each group in the tile knows the group's size there and writes it to a table of tiles times
groups, 1 / `_TILE` of the one-hot array; a cumulative sum over tiles then gives what came before.
"""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Int

_TILE = 128


def rank_in_group(
    groups: Int[Array, " A"], num_groups: int, *, interpret: bool = False
) -> tuple[Int[Array, " A"], Int[Array, " G"]]:
    """As `reference.rank_in_group`."""
    size = groups.shape[0]
    tiles, columns = pl.cdiv(size, _TILE), num_groups + 1

    def kernel(groups_ref, _, rank_ref, table_ref) -> None:  # type: ignore[no-untyped-def]
        lane = jnp.arange(_TILE, dtype=jnp.int32)
        index = pl.program_id(0).astype(jnp.int32) * _TILE + lane
        group = plgpu.load(groups_ref.at[index], mask=index < size, other=-1)
        same = group[:, None] == group[None, :]
        rank = jnp.sum(jnp.where(same & (lane[None, :] < lane[:, None]), 1, 0), axis=1)
        after = jnp.sum(jnp.where(same & (lane[None, :] > lane[:, None]), 1, 0), axis=1)
        rank = rank.astype(jnp.int32)
        plgpu.store(rank_ref.at[index], rank, mask=index < size)
        last = (group >= 0) & (group < num_groups) & (after == 0)
        # Lanes without a cell of their own point at a spare one: the interpreter writes back what
        # masked lanes point at, which must not be another lane's cell.
        cell = pl.program_id(0).astype(jnp.int32) * columns + jnp.where(last, group, num_groups)
        plgpu.store(table_ref.at[cell], rank + 1, mask=last)

    rank, flat = pl.pallas_call(
        kernel,
        out_shape=(
            jax.ShapeDtypeStruct((size,), jnp.int32),
            jax.ShapeDtypeStruct((tiles * columns,), jnp.int32),
        ),
        grid=(tiles,),
        input_output_aliases={1: 1},
        compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=1),
        interpret=interpret,
        name="rank_in_group",
    )(groups.astype(jnp.int32), jnp.zeros(tiles * columns, jnp.int32))
    table = flat.reshape(tiles, columns)[:, :num_groups]
    before = jnp.cumsum(table, axis=0) - table
    tile = jnp.arange(size, dtype=jnp.int32) // _TILE
    inside = (groups >= 0) & (groups < num_groups)
    rank += before[tile, jnp.where(inside, groups, 0)]
    return jnp.where(inside, rank, -1), table.sum(axis=0, dtype=jnp.int32)
