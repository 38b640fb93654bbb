"""`permute_rows` with its gradient: the transpose of a gather whose inverse is known is a
gather too, so the backward pass is `combine_rows` and neither scatters nor adds atomically."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.kernels.backend import Backend, choose
from marin.kernels.permute_rows import reference


def invert_slots(slots: Int[Array, "T K"], rows: int) -> Int[Array, " R"]:
    """For each of `rows` buffer rows the assignment `t * K + j` with `slots[t, j] == r`, or -1."""
    flat = slots.reshape(-1)
    target = jnp.where(flat < 0, rows, flat)
    assignments = jnp.arange(flat.size, dtype=slots.dtype)
    empty = jnp.full(rows, -1, slots.dtype)
    return empty.at[target].set(assignments, mode="drop", unique_indices=True)


def forward(
    x: Float[Array, "T w"], sources: Int[Array, " R"], backend: Backend | None
) -> Float[Array, "R w"]:
    """The chosen implementation, without a gradient; see `reference.permute_rows`."""
    chosen = choose("permute_rows", backend)
    if chosen != "reference":
        from marin.kernels.permute_rows import pallas_gpu

        return pallas_gpu.permute_rows(x, sources, interpret=chosen == "interpret")
    return reference.permute_rows(x, sources)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def permute_rows(
    x: Float[Array, "T w"],
    assignments: Int[Array, " R"],
    slots: Int[Array, "T K"],
    backend: Backend | None = None,
) -> Float[Array, "R w"]:
    """Row `r` is `x[assignments[r] // K]`, or zero where `assignments[r]` is -1.

    `slots[t, j]` is the row of assignment `(t, j)` or -1, and `assignments` its inverse (see
    `invert_slots`). Gradients of `x` are summed in float32 and rounded once.
    """
    return forward(x, _tokens(assignments, slots.shape[1]), backend)


def _tokens(assignments: Int[Array, " R"], k: int) -> Int[Array, " R"]:
    return jnp.where(assignments < 0, -1, assignments // k)


def _forward(
    x: Array, assignments: Array, slots: Array, backend: Backend | None
) -> tuple[Array, Array]:
    return permute_rows(x, assignments, slots, backend), slots


def _backward(backend: Backend | None, slots: Array, dy: Array) -> tuple[Array, None, None]:
    # Each of the two operations is the other's backward pass, so one import has to be late.
    from marin.kernels.combine_rows.api import forward as combine

    dx = combine(dy, slots, jnp.ones(slots.shape, jnp.float32), dy.dtype, backend)
    return dx, None, None


permute_rows.defvjp(_forward, _backward)
