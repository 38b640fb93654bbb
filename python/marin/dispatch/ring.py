"""`ring`: every device sees the tokens of its whole group, one neighbour at a time.

Rows and a partial result travel once around the expert axis in n steps: an all-gather and a
reduce-scatter that never hold more than one device's rows. At each step a device adds what its own
experts make of the visiting tokens. Nothing is dropped, whatever the routing.

Bytes out per device: n T w (itemsize + 4): rows and their float32 partial results; plus the
all-gather of expert ids and weights, 8 T K per device. Against pooled_wave's 2 * 1.15 T K w, this
pays where n is about K or smaller.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.dispatch.local import run_experts
from marin.dispatch.types import Experts, Routing


def moe_ring(
    x: Float[Array, "T w"], routing: Routing, experts: Experts, *, axis: str, devices: int
) -> tuple[Float[Array, "T w"], Int[Array, ""]]:
    """One device's part: its tokens' output, and the number of rows it computed for others."""
    here = jax.lax.axis_index(axis)
    local_experts = experts.gate.shape[0]
    ids = jnp.where(routing.valid[:, None], routing.experts, -1)
    all_ids = jax.lax.all_gather(ids, axis)
    all_weights = jax.lax.all_gather(routing.weights, axis)
    to_next = [(i, (i + 1) % devices) for i in range(devices)]

    def visit(
        carry: tuple[Array, Array, Array], step: Array
    ) -> tuple[tuple[Array, Array, Array], None]:
        rows, partial_sum, computed = carry
        home = (here - step) % devices
        local = all_ids[home] - here * local_experts
        y, used = run_experts(
            rows, local, all_weights[home], experts, rows=local.size, dtype=jnp.float32
        )
        rows, partial_sum = (jax.lax.ppermute(a, axis, to_next) for a in (rows, partial_sum + y))
        return (rows, partial_sum, computed + used), None

    start = (x, jnp.zeros(x.shape, jnp.float32), jnp.zeros((), jnp.int32))
    (_, y, computed), _ = jax.lax.scan(visit, start, jnp.arange(devices, dtype=jnp.int32))
    return y.astype(x.dtype), computed
