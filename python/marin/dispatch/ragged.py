"""`ragged`: rows travel in their true numbers, so nothing is dropped by construction.

Tokens are processed in chunks. Per chunk every device announces how many rows it has for each
expert (one small all-gather), which fixes all offsets; one ragged all-to-all takes the rows out and
one brings them back. A receiver gets at most n A / chunks rows, when everybody sends it everything,
and that is its buffer: with as many chunks as devices it is A, the balanced load of a whole batch.
Bytes moved between devices and rows computed are those of the true lengths. Memory is reserved for
the bound and swept: each chunk clears its receive buffer, regroups it by expert and puts the
results back in its order, so that each pass writes 3 n A rows on a device, whatever the number of
chunks.

Between the passes only the chunks' inputs are kept. The backward pass makes a chunk again, both
exchanges and the experts' products included, and then takes its gradient: memory is that of one
chunk, for one more forward pass.

With a buffer factor f the buffer is f A / chunks instead. What exceeds it is dropped at the sender,
which knows: the receiver's rows are shared max-min fairly over senders and each sender drops by the
policy. This costs a second small all-gather and is counted as dropped at the sender.
"""

import math

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from marin.dispatch.admission import heaviest_first, rank_by_key
from marin.dispatch.local import run_experts
from marin.dispatch.ragged_exchange import ragged_exchange
from marin.dispatch.ragged_plan import fair_quotas
from marin.dispatch.transports import Ragged
from marin.dispatch.types import Experts, Routing
from marin.kernels.combine_rows import combine_rows
from marin.kernels.permute_rows import invert_slots, permute_rows
from marin.kernels.rank_in_group import rank_in_group


def chunk_tokens(transport: Ragged, tokens: int, devices: int) -> int:
    """Tokens of one chunk; the last chunk is filled up with padding."""
    return math.ceil(tokens / (transport.chunks or devices))


def buffer_rows(transport: Ragged, assignments: int, devices: int) -> int:
    """Rows of the receive buffer for a chunk of `assignments` assignments per device."""
    bound = devices * assignments
    if transport.buffer_factor is None:
        return bound
    return min(bound, math.ceil(transport.buffer_factor * assignments))


def exchange_bytes(tokens: int, k: int, devices: int, width: int, dtype: DTypeLike) -> float:
    """Bytes of rows that leave one device in one forward pass, under balanced load."""
    return 2.0 * tokens * k * width * jnp.dtype(dtype).itemsize * (devices - 1) / devices


def moe_ragged(
    x: Float[Array, "T w"],
    routing: Routing,
    experts: Experts,
    transport: Ragged,
    *,
    axis: str,
    devices: int,
) -> tuple[Float[Array, "T w"], Bool[Array, "T K"], Int[Array, ""]]:
    """One device's part: its output, what was dropped, and the rows it computed for others."""
    tokens, k = routing.experts.shape
    size = chunk_tokens(transport, tokens, devices)
    chunks = math.ceil(tokens / size)
    ids = jnp.where(routing.valid[:, None], routing.experts, -1)

    def cut(a: Array, fill: int) -> Array:
        padded = jnp.pad(a, ((0, chunks * size - tokens), (0, 0)), constant_values=fill)
        return padded.reshape(chunks, size, a.shape[1])

    def step(
        computed: Array, chunk: tuple[Array, Array, Array]
    ) -> tuple[Array, tuple[Array, Array]]:
        y, lost, used = _chunk(*chunk, experts, transport, axis, devices)
        return computed + used, (y, lost)

    parts = (cut(x, 0), cut(ids, -1), cut(routing.weights, 0))
    # Without this the scan would keep the worst-case buffers of all chunks, n A rows and more.
    again = jax.checkpoint(step, prevent_cse=False)
    computed, (y, lost) = jax.lax.scan(again, jnp.zeros((), jnp.int32), parts)
    return y.reshape(-1, x.shape[1])[:tokens], lost.reshape(-1, k)[:tokens], computed


def _chunk(
    x: Float[Array, "C w"],
    ids: Int[Array, "C K"],
    weights: Float[Array, "C K"],
    experts: Experts,
    transport: Ragged,
    axis: str,
    devices: int,
) -> tuple[Float[Array, "C w"], Bool[Array, "C K"], Int[Array, ""]]:
    local_experts = experts.gate.shape[0]
    here = jax.lax.axis_index(axis)
    rows = buffer_rows(transport, ids.size, devices)
    wanted = ids
    if rows < devices * ids.size:
        ids = _within_quota(ids, weights, transport, rows, local_experts, axis, devices)

    ranks, counts = rank_in_group(ids.reshape(-1), devices * local_experts)
    starts = jnp.cumsum(counts) - counts
    slots = jnp.where(ids.reshape(-1) < 0, -1, starts[ids.reshape(-1)] + ranks).reshape(ids.shape)
    assignments = invert_slots(slots, ids.size)
    sent = permute_rows(x, assignments, slots)

    # [sender, destination, local expert]
    table = jax.lax.all_gather(counts, axis).reshape(devices, devices, local_experts)
    sizes = table.sum(axis=2)
    received = ragged_exchange(sent, sizes, rows, axis)
    # A receive buffer is sorted by sender, then expert, so the counts alone say what each row is.
    ends = jnp.cumsum(table[:, here].reshape(-1))
    position = jnp.arange(rows, dtype=jnp.int32)
    owner = jnp.searchsorted(ends, position, side="right").astype(jnp.int32) % local_experts
    owner = jnp.where(position < ends[-1], owner, -1)

    ones = jnp.ones((rows, 1), jnp.float32)
    out, used = run_experts(received, owner[:, None], ones, experts, rows=rows, dtype=x.dtype)
    returned = ragged_exchange(out, sizes.T, ids.size, axis)
    y = combine_rows(returned, slots, weights, assignments, x.dtype)
    return y, (wanted >= 0) & (ids < 0), used


def _within_quota(
    ids: Int[Array, "C K"],
    weights: Float[Array, "C K"],
    transport: Ragged,
    rows: int,
    local_experts: int,
    axis: str,
    devices: int,
) -> Int[Array, "C K"]:
    """The expert ids with -1 for those that do not fit into their receiver's buffer."""
    destination = jnp.where(ids < 0, -1, ids // local_experts).reshape(-1)
    keys = () if transport.policy == "arrival" else (heaviest_first(weights.reshape(-1)),)
    rank, demand = rank_by_key(destination, devices, *keys)
    quota = fair_quotas(jax.lax.all_gather(demand, axis), rows)[jax.lax.axis_index(axis)]
    fits = (rank >= 0) & (rank < quota[destination])
    return jnp.where(fits.reshape(ids.shape), ids, -1)
