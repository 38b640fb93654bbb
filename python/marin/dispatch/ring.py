"""`ring`: every device sees the tokens of its whole group, one neighbour at a time.

Rows and a partial result travel once around the expert axis in n steps: an all-gather and a
reduce-scatter that never hold more than one device's rows. At each step a device adds what its own
experts make of the visiting tokens. Nothing is dropped, whatever the routing.

The backward pass is a second turn: rows, the gradients of their results and their own gradient in
float32 travel, and at each step a device makes its experts' part again and takes its gradient. Only
what came in is kept between the passes, so memory does not grow with n beyond the ids and weights
of the group.

Bytes out per device: n T w (itemsize + 4) forward, rows and their float32 partial results, and
n T w (itemsize + 8) backward; plus the all-gather of expert ids and weights, 8 T K per device.
Against pooled_wave's 2 * 1.15 T K w, this pays where n is about K or smaller. Each visit sweeps a
buffer of A = T K rows, grouped by expert, however few of them are for this device: n A rows.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from marin.dispatch.local import run_experts
from marin.dispatch.types import Experts, Routing


def exchange_bytes(
    tokens: int, devices: int, width: int, dtype: DTypeLike, *, backward: bool = False
) -> int:
    """Bytes of rows that leave one device in one turn, forward or backward."""
    float32 = 2 if backward else 1
    row = width * (jnp.dtype(dtype).itemsize + 4 * float32)
    return devices * tokens * row if devices > 1 else 0


def moe_ring(
    x: Float[Array, "T w"], routing: Routing, experts: Experts, *, axis: str, devices: int
) -> tuple[Float[Array, "T w"], Int[Array, ""]]:
    """One device's part: its tokens' output, and the number of rows it computed for others."""
    ids = jnp.where(routing.valid[:, None], routing.experts, -1)
    all_ids = jax.lax.all_gather(ids, axis)
    all_weights = jax.lax.all_gather(routing.weights, axis)
    y, computed = _turn(x, all_weights, experts, all_ids, axis, devices)
    return y.astype(x.dtype), computed


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _turn(
    x: Float[Array, "T w"],
    all_weights: Float[Array, "n T K"],
    experts: Experts,
    all_ids: Int[Array, "n T K"],
    axis: str,
    devices: int,
) -> tuple[Float[Array, "T w"], Int[Array, ""]]:
    def visit(
        carry: tuple[Array, Array, Array], step: Array
    ) -> tuple[tuple[Array, Array, Array], None]:
        rows, partial_sum, computed = carry
        home = (jax.lax.axis_index(axis) - step) % devices
        y, used = _visited(rows, all_weights[home], experts, all_ids[home], axis)
        rows, partial_sum = _to_next((rows, partial_sum + y), axis, devices)
        return (rows, partial_sum, computed + used), None

    start = (x, jnp.zeros(x.shape, jnp.float32), jnp.zeros((), jnp.int32))
    (_, y, computed), _ = jax.lax.scan(visit, start, jnp.arange(devices, dtype=jnp.int32))
    return y, computed


def _visited(
    rows: Float[Array, "T w"],
    weights: Float[Array, "T K"],
    experts: Experts,
    ids: Int[Array, "T K"],
    axis: str,
) -> tuple[Float[Array, "T w"], Int[Array, ""]]:
    """What this device's experts make of visiting rows."""
    local = ids - jax.lax.axis_index(axis) * experts.gate.shape[0]
    return run_experts(rows, local, weights, experts, rows=local.size, dtype=jnp.float32)


def _to_next(arrays: tuple[Array, ...], axis: str, devices: int) -> tuple[Array, ...]:
    ring = [(i, (i + 1) % devices) for i in range(devices)]
    return tuple(jax.lax.ppermute(a, axis, ring) for a in arrays)


_Saved = tuple[Array, Array, Experts, Array]


def _forward(
    x: Array, all_weights: Array, experts: Experts, all_ids: Array, axis: str, devices: int
) -> tuple[tuple[Array, Array], _Saved]:
    y = _turn(x, all_weights, experts, all_ids, axis, devices)
    return y, (x, all_weights, experts, all_ids)


def _backward(
    axis: str, devices: int, saved: _Saved, cotangents: tuple[Array, Array]
) -> tuple[Array, Array, Experts, None]:
    x, all_weights, experts, all_ids = saved
    here = jax.lax.axis_index(axis)

    def visit(
        carry: tuple[Array, Array, Array, Experts], step: Array
    ) -> tuple[tuple[Array, Array, Array, Experts], Array]:
        rows, dy, d_rows, d_experts = carry
        home = (here - step) % devices
        part = partial(_visited, ids=all_ids[home], axis=axis)
        _, back, _ = jax.vjp(part, rows, all_weights[home], experts, has_aux=True)
        more_rows, d_weights, more_experts = back(dy)
        d_experts = jax.tree.map(jnp.add, d_experts, more_experts)
        rows, dy, d_rows = _to_next((rows, dy, d_rows + more_rows), axis, devices)
        return (rows, dy, d_rows, d_experts), d_weights

    def zeros(a: Array) -> Array:
        return jnp.zeros(a.shape, jnp.float32)

    start = (x, cotangents[0], zeros(x), jax.tree.map(zeros, experts))
    steps = jnp.arange(devices, dtype=jnp.int32)
    (_, _, dx, d_experts), by_step = jax.lax.scan(visit, start, steps)
    d_experts = jax.tree.map(lambda d, p: d.astype(p.dtype), d_experts, experts)
    return dx.astype(x.dtype), by_step[(here - steps) % devices], d_experts, None


_turn.defvjp(_forward, _backward)
