"""Who gets a place in a pool that may be too small: a policy, never the number of an expert or
device."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from marin.kernels.rank_in_group import rank_in_group


def heaviest_first(weights: Float[Array, " A"]) -> UInt32[Array, " A"]:
    """A sort key: a non-negative float's bits, read as an integer, sort like the float."""
    return ~jax.lax.bitcast_convert_type(jnp.abs(weights.astype(jnp.float32)), jnp.uint32)


def rank_by_key(
    groups: Int[Array, " A"], num_groups: int, *keys: UInt32[Array, " A"]
) -> tuple[Int[Array, " A"], Int[Array, " G"]]:
    """Rank of each assignment within its group in ascending order of the keys, and group sizes.

    The first key counts most; assignments equal in all keys rank by arrival. Without keys this is
    `rank_in_group`, and a group outside [0, num_groups) has rank -1 as there. One stable sort per
    key: a sort by one integer key is what radix sorts on GPUs do.
    """
    order = jnp.arange(groups.size, dtype=jnp.int32)
    for key in reversed(keys):
        order = order[jnp.argsort(key[order], stable=True)]
    ranks, counts = rank_in_group(groups[order], num_groups)
    return jnp.zeros_like(ranks).at[order].set(ranks, unique_indices=True), counts


def mix_bits(*words: Int[Array, " A"]) -> UInt32[Array, " A"]:
    """A hash of int32 words that breaks ties without favouring low numbers (Murmur3 finalizer)."""
    h = jnp.zeros(words[0].shape, jnp.uint32)
    for word in words:
        h = (h ^ word.astype(jnp.uint32)) * jnp.uint32(0x9E3779B1)
        h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
        h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
        h ^= h >> 16
    return h
