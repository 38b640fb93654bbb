"""`pooled_wave`: static pools, one per destination device, striped over W waves.

A sender ranks its assignments per destination device by the drop policy. The first
C = `pool_rows` of them have a place: rank r travels in wave r mod W at position r div W, so every
wave carries the same mix and its buffers are a W-th. A wave is one all-to-all out and one back. The
receiver pools the rows of all senders and all its local experts, drops what exceeds its share of
`receiver_rows` by the same policy, computes and sends back.

In the forward pass, buffers of rows live for one wave. Wave v + 1 leaves once wave v - 1 is back,
so that one wave communicates while another computes and, from two waves on, the buffers of two of
them are held, 2 / W of the pool.

The backward pass needs of every wave its rows at the receiver, gate and up before the activation,
and what came back: 2 w + 2 m numbers per place of the pool, whatever W. What is alive besides need
not fall with W either: each wave has a gradient of all T rows. A layer that is rematerialized as a
whole holds the same while its gradient is taken.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from marin.dispatch.admission import heaviest_first, mix_bits, rank_by_key
from marin.dispatch.exchange import exchange, payload_bytes
from marin.dispatch.local import run_experts
from marin.dispatch.transports import Policy, PooledWave
from marin.dispatch.types import Experts, Routing
from marin.kernels.combine_rows import combine_rows
from marin.kernels.permute_rows import invert_slots, permute_rows


def pool_rows(transport: PooledWave, assignments: int, devices: int) -> int:
    """C: rows one sender may send to one destination; a multiple of the number of waves."""
    share = math.ceil(transport.transport_capacity * assignments / devices)
    return transport.waves * math.ceil(share / transport.waves)


def exchange_bytes(
    transport: PooledWave, tokens: int, k: int, devices: int, width: int, dtype: DTypeLike
) -> int:
    """Bytes that one device puts into the all-to-alls of one forward pass; 1 / n of them stay.

    Out goes a row with its expert id and weight, back comes the row and whether it was computed;
    striping adds the token's row with its routing, and its result. The backward pass moves the same
    rows without what travels with them.
    """
    rows = devices * pool_rows(transport, tokens * k, devices)
    row = (width, dtype)
    total = rows * (payload_bytes(row, (2, jnp.int32)) + payload_bytes(row, (1, jnp.int32)))
    if transport.stripe:
        total += tokens * (payload_bytes(row, (2 * k + 1, jnp.int32)) + payload_bytes(row))
    return total


def receiver_rows(transport: PooledWave, assignments: int, devices: int) -> int:
    """Rows a device may compute in one wave; rounded as `pool_rows`, so that a receiver as large as
    its pools never has to choose."""
    share = math.ceil(transport.receiver_capacity * assignments / devices)
    return devices * math.ceil(share / transport.waves)


def moe_pooled_wave(
    x: Float[Array, "T w"],
    routing: Routing,
    experts: Experts,
    transport: PooledWave,
    *,
    axis: str,
    devices: int,
) -> tuple[Float[Array, "T w"], Bool[Array, "T K"], Bool[Array, "T K"], Int[Array, ""]]:
    """One device's part: its output, what was dropped at the sender and at the receiver, and the
    number of rows it computed for others."""
    waves, local_experts = transport.waves, experts.gate.shape[0]
    shape = routing.experts.shape
    wave_pool = pool_rows(transport, routing.experts.size, devices) // waves
    limit = receiver_rows(transport, routing.experts.size, devices)

    valid = routing.valid[:, None]
    destination = jnp.where(valid, routing.experts // local_experts, -1)
    keys = () if transport.policy == "arrival" else (heaviest_first(routing.weights.reshape(-1)),)
    rank, _ = rank_by_key(destination.reshape(-1), devices, *keys)
    rank = rank.reshape(shape)
    sent = (rank >= 0) & (rank < wave_pool * waves)
    row = destination * wave_pool + rank // waves

    local_id = routing.experts % local_experts
    weight_bits = jax.lax.bitcast_convert_type(routing.weights.astype(jnp.float32), jnp.int32)

    def send(wave: int, may_go: Array | bool) -> tuple[Array, Array, Array, Array]:
        slots = jnp.where(sent & (rank % waves == wave) & may_go, row, -1)
        assignments = invert_slots(slots, devices * wave_pool)
        rows = permute_rows(x, assignments, slots)

        def column(values: Array, empty: int) -> Array:
            return jnp.where(assignments < 0, empty, values.reshape(-1)[assignments])

        meta = jnp.stack([column(local_id, -1), column(weight_bits, 0)], axis=1)
        received, meta = exchange((rows, meta), axis)
        return received, meta, slots, assignments

    y = jnp.zeros(x.shape, jnp.float32)
    kept = jnp.zeros(shape, bool)
    computed = jnp.zeros((), jnp.int32)
    may_go: Array | bool = True
    in_flight = send(0, may_go)
    for wave in range(waves):
        received, meta, slots, assignments = in_flight
        if wave + 1 < waves:
            in_flight = send(wave + 1, may_go)
        ids = _admit(meta, limit, transport.policy, wave_pool)
        # The receiver returns plain outputs: combine weights stay with the sender.
        ones = jnp.ones((ids.size, 1), jnp.float32)
        out, rows_used = run_experts(
            received, ids[:, None], ones, experts, rows=min(limit, ids.size), dtype=x.dtype
        )
        returned, flags = exchange((out, (ids >= 0).astype(jnp.int32)[:, None]), axis)
        # Always true, but only known once this wave is back: a scheduler free to send all waves at
        # once would keep the buffers of all of them.
        may_go = jnp.all(flags >= 0)
        y += combine_rows(returned, slots, routing.weights, assignments, jnp.float32)
        kept |= (
            flags[:, 0].at[slots].get(mode="fill", fill_value=0, wrap_negative_indices=False) > 0
        )
        computed += rows_used
    return y.astype(x.dtype), valid & ~sent, sent & ~kept, computed


def _admit(meta: Int[Array, "R 2"], limit: int, policy: Policy, wave_pool: int) -> Int[Array, " R"]:
    """The local expert of each received row, -1 for an empty row or one that found no place."""
    ids, weight_bits = meta[:, 0], meta[:, 1]
    if ids.size <= limit:
        return ids
    position = jnp.arange(ids.size, dtype=jnp.int32)
    slot = position % wave_pool
    # Equal candidates are told apart by a hash of their weights: by position, the same senders
    # would lose at every step.
    tie = mix_bits(weight_bits, position)
    if policy == "weight":
        weights = jax.lax.bitcast_convert_type(weight_bits, jnp.float32)
        keys = (heaviest_first(weights), tie)
    else:
        # A sender's rows stand in the order of its own policy, so taking slot by slot gives every
        # sender the same number of rows.
        keys = (slot.astype(jnp.uint32), tie)
    rank, _ = rank_by_key(jnp.where(ids < 0, -1, 0), 1, *keys)
    return jnp.where(rank < limit, ids, -1)
