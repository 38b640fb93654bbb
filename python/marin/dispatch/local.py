"""`local`: rows sorted by expert and one grouped product, all on the token's own device."""

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from marin.dispatch.types import Experts, Routing
from marin.kernels.combine_rows import combine_rows
from marin.kernels.grouped_swiglu import block_layout, grouped_swiglu
from marin.kernels.grouped_swiglu.api import block_rows
from marin.kernels.permute_rows import invert_slots, permute_rows


def run_experts(
    x: Float[Array, "T w"],
    expert_ids: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    experts: Experts,
    *,
    rows: int,
    dtype: DTypeLike,
) -> tuple[Float[Array, "T w"], Int[Array, ""]]:
    """The weighted sum of the experts' outputs per row of `x`, and the number of rows computed.

    The sum is float32, rounded once to `dtype`. An id outside [0, E) is nobody. `rows` bounds the
    assignments inside [0, E) for any routing the caller can pass; the buffer holds that many rows
    and each expert's share of one more block.
    """
    count = experts.gate.shape[0]
    block = block_rows(rows / count)
    layout = block_layout(expert_ids.reshape(-1), count, rows=rows, block=block)
    slots = layout.slots.reshape(expert_ids.shape)
    assignments = invert_slots(slots, layout.expert_of_block.shape[0] * block)
    gathered = permute_rows(x, assignments, slots)
    out = grouped_swiglu(gathered, layout.expert_of_block, layout.blocks_used, *experts)
    return combine_rows(out, slots, weights, assignments, dtype), layout.counts.sum()


def moe_local(
    x: Float[Array, "T w"], routing: Routing, experts: Experts
) -> tuple[Float[Array, "T w"], Int[Array, ""]]:
    """The layer on one device that holds all experts, and the number of rows computed."""
    ids = jnp.where(routing.valid[:, None], routing.experts, -1)
    return run_experts(x, ids, routing.weights, experts, rows=ids.size, dtype=x.dtype)
