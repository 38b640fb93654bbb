"""Which assignments each transport drops, in NumPy: the policies in their plainest form.

The tests hold the transports against this module, and the simulation of drops runs it on many
devices at once. Arrays of one expert-parallel group: experts, weights [n, T, K], valid [n, T].
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from marin.dispatch.transports import Policy, PooledWave, Ragged

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


class Drops(NamedTuple):
    """Which assignments [n, T, K] found no place at the sender, and which at the receiver."""

    sender: Mask
    receiver: Mask


def rank_in_group(groups: NDArray[Any], *keys: NDArray[Any]) -> Ints:
    """Rank of each entry within its group, in ascending order of the keys, the first counting most;
    equal entries in order of arrival. Negative groups are no group and have rank -1."""
    if len(keys) == 1 and keys[0].dtype == np.uint32:
        order = np.argsort((groups.astype(np.uint64) << 32) | keys[0], kind="stable")
    else:
        order = np.lexsort((*reversed(keys), groups))
    ordered = groups[order]
    first = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    start = np.repeat(first, np.diff(first, append=ordered.size))
    ranks = np.empty(groups.size, np.int64)
    ranks[order] = np.arange(groups.size) - start
    return np.where(groups < 0, -1, ranks)


def heaviest_first(weights: NDArray[Any]) -> NDArray[np.uint32]:
    """A key that ascends as the weight descends."""
    bits: NDArray[np.uint32] = np.abs(weights).astype(np.float32).view(np.uint32)
    return ~bits


def mix_bits(*words: NDArray[Any]) -> NDArray[np.uint32]:
    """The hash of `admission.mix_bits`."""
    h = np.zeros(words[0].shape, np.uint32)
    with np.errstate(over="ignore"):
        for word in words:
            h = (h ^ word.astype(np.uint32)) * np.uint32(0x9E3779B1)
            h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
            h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
            h ^= h >> np.uint32(16)
    return h


def cell_ranks(experts: NDArray[Any], weights: NDArray[Any], valid: Mask, num_experts: int) -> Ints:
    """Rank [n, T, K] of each assignment among those of its sender to the same expert."""
    cell = np.arange(experts.shape[0])[:, None, None] * num_experts + experts
    return rank_in_group(_flat(cell, valid), heaviest_first(weights.ravel())).reshape(experts.shape)


def cell_drops(
    experts: NDArray[Any],
    weights: NDArray[Any],
    valid: Mask,
    num_experts: int,
    capacity: float,
    rank: Ints | None = None,
) -> Drops:
    """Capacity per cell of one sender and one expert, lowest combine weight first: what
    `pooled_wave` improves upon. `rank`: `cell_ranks` of the same routing, if they are at hand."""
    if rank is None:
        rank = cell_ranks(experts, weights, valid, num_experts)
    places = math.ceil(capacity * experts[0].size / num_experts)
    return Drops(rank >= places, np.zeros(experts.shape, bool))


def pool_ranks(
    experts: NDArray[Any], weights: NDArray[Any], valid: Mask, num_experts: int, policy: Policy
) -> Ints:
    """Rank [n, T, K] of each assignment among those of its sender to the same device."""
    n = experts.shape[0]
    pool = np.arange(n)[:, None, None] * n + experts // (num_experts // n)
    keys = () if policy == "arrival" else (heaviest_first(weights.ravel()),)
    return rank_in_group(_flat(pool, valid), *keys).reshape(experts.shape)


def pooled_wave_drops(
    experts: NDArray[Any],
    weights: NDArray[Any],
    valid: Mask,
    num_experts: int,
    transport: PooledWave,
    rank: Ints | None = None,
) -> Drops:
    """What `pooled_wave` drops. `rank`: `pool_ranks` of the same routing, if they are at hand."""
    if transport.stripe:
        whole = replace(transport, stripe=False)
        dealt = (deal(experts), deal(weights), deal(valid))
        return Drops(*(deal_back(m) for m in pooled_wave_drops(*dealt, num_experts, whole)))
    n, tokens, k = experts.shape
    waves = transport.waves
    wave_pool = math.ceil(math.ceil(transport.transport_capacity * tokens * k / n) / waves)
    limit = n * math.ceil(math.ceil(transport.receiver_capacity * tokens * k / n) / waves)
    if rank is None:
        rank = pool_ranks(experts, weights, valid, num_experts, transport.policy)
    lost_sender = rank >= wave_pool * waves

    receiver = np.zeros(experts.shape, bool)
    sent = (rank >= 0) & ~lost_sender
    if wave_pool * n > limit:
        sender = np.broadcast_to(np.arange(n)[:, None, None], experts.shape)
        destination = experts // (num_experts // n)
        slot = rank[sent] // waves
        position = sender[sent] * wave_pool + slot
        pool = destination[sent] * waves + rank[sent] % waves
        bits = weights.astype(np.float32)[sent].view(np.int32)
        tie = mix_bits(bits, position)
        first = heaviest_first(weights[sent]) if transport.policy == "weight" else slot
        receiver[sent] = rank_in_group(pool, first, tie) >= limit
    return Drops(lost_sender, receiver)


def ragged_drops(
    experts: NDArray[Any],
    weights: NDArray[Any],
    valid: Mask,
    num_experts: int,
    transport: Ragged,
) -> Drops:
    """What `ragged` drops: nothing, or what a small buffer cannot hold."""
    n, tokens, k = experts.shape
    size = math.ceil(tokens / (transport.chunks or n))
    lost = np.zeros(experts.shape, bool)
    if transport.buffer_factor is None:
        return Drops(lost, np.zeros_like(lost))
    rows = min(n * size * k, math.ceil(transport.buffer_factor * size * k))
    chunk = np.broadcast_to(np.arange(tokens)[None, :, None] // size, experts.shape)
    sender = np.broadcast_to(np.arange(n)[:, None, None], experts.shape)
    destination = experts // (num_experts // n)
    group = _flat((chunk * n + sender) * n + destination, valid)
    keys = () if transport.policy == "arrival" else (heaviest_first(weights.ravel()),)
    rank = rank_in_group(group, *keys)
    chunks = math.ceil(tokens / size)
    demand = np.bincount(group[group >= 0], minlength=chunks * n * n).reshape(chunks, n, n)
    quota = np.stack([plain_fair_quotas(d, rows) for d in demand]).ravel()
    lost = ((rank >= quota[group]) & (group >= 0)).reshape(experts.shape)
    return Drops(lost, np.zeros_like(lost))


def plain_fair_quotas(demand: Ints, capacity: int) -> Ints:
    """`ragged_plan.fair_quotas`, one destination at a time, one row at a time."""
    n = len(demand)
    quota = np.zeros_like(demand)
    for d in range(n):
        left = capacity
        while left >= (hungry := quota[:, d] < demand[:, d]).sum() > 0:
            step = min((demand[:, d] - quota[:, d])[hungry].min(), left // hungry.sum())
            quota[hungry, d] += step
            left -= step * hungry.sum()
        order = mix_bits(demand[:, d], np.arange(n), np.full(n, d)).astype(np.int64)
        turn = np.argsort(np.where(hungry, order, 2**32), kind="stable")
        quota[turn[: min(left, hungry.sum())], d] += 1
    return quota


def deal(a: NDArray[Any]) -> NDArray[Any]:
    """[n, T, ...] as it lies after striping: token t of every device on device t mod n."""
    n, tokens, *rest = a.shape
    return a.reshape(n, tokens // n, n, *rest).swapaxes(0, 2).swapaxes(1, 2).reshape(a.shape)


def deal_back(a: NDArray[Any]) -> NDArray[Any]:
    """The inverse of `deal`."""
    n, tokens, *rest = a.shape
    return a.reshape(n, n, tokens // n, *rest).swapaxes(0, 1).swapaxes(1, 2).reshape(a.shape)


def _flat(groups: NDArray[Any], valid: Mask) -> NDArray[Any]:
    return np.where(valid[..., None], groups, -1).ravel()
