"""The meaning of `rank_in_group`."""

import jax.numpy as jnp
from jaxtyping import Array, Int


def rank_in_group(
    groups: Int[Array, " A"], num_groups: int
) -> tuple[Int[Array, " A"], Int[Array, " G"]]:
    """How many earlier assignments have the same group, and the size of each group.

    A group outside [0, num_groups) is no group: its members have rank -1 and are counted nowhere.
    One stable sort; no array of A times G.
    """
    inside = (groups >= 0) & (groups < num_groups)
    key = jnp.where(inside, groups, num_groups)
    order = jnp.argsort(key, stable=True)
    ends = jnp.searchsorted(key[order], jnp.arange(num_groups + 1), side="right").astype(jnp.int32)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    position = jnp.arange(groups.size, dtype=jnp.int32)
    rank = (
        jnp.zeros(groups.size, jnp.int32)
        .at[order]
        .set(position - starts[key[order]], unique_indices=True)
    )
    return jnp.where(inside, rank, -1), (ends - starts)[:-1]
