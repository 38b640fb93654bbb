"""Where each row stands in the block-aligned buffer that the grouped products read.

Rows are sorted by expert and every expert starts at a multiple of `block` rows, so that one block
never mixes experts and a product needs one weight matrix per block. The price is at most
`block - 1` empty rows per expert.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Int

from marin.kernels.rank_in_group import rank_in_group


class BlockLayout(NamedTuple):
    """Where rows stand.

    slots [A]: row of each assignment, or -1. expert_of_block [N]: the local expert of each block, 0
    for unused ones. blocks_used []: blocks that hold rows; they come first. counts [E]: rows of
    each expert.
    """

    slots: Int[Array, " A"]
    expert_of_block: Int[Array, " N"]
    blocks_used: Int[Array, ""]
    counts: Int[Array, " E"]


def num_blocks(rows: int, experts: int, block: int) -> int:
    """Blocks that suffice for any split of `rows` rows over `experts` experts."""
    return (rows + min(experts, rows) * (block - 1)) // block


def block_layout(
    expert_ids: Int[Array, " A"], experts: int, *, rows: int, block: int
) -> BlockLayout:
    """Places the assignments; an expert id outside [0, experts) gets no row.

    `rows` is an upper bound of the number of assignments inside [0, experts).
    """
    ranks, counts = rank_in_group(expert_ids, experts)
    blocks = -(-counts // block)
    ends = jnp.cumsum(blocks)
    first_row = jnp.append((ends - blocks) * block, 0)
    inside = ranks >= 0
    slots = jnp.where(inside, first_row[jnp.where(inside, expert_ids, experts)] + ranks, -1)
    index = jnp.arange(num_blocks(rows, experts, block))
    owner = jnp.searchsorted(ends, index, side="right").astype(jnp.int32)
    return BlockLayout(slots, jnp.where(index < ends[-1], owner, 0), ends[-1], counts)
