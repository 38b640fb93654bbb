"""`combine_rows` with its gradient: each row receives its token's gradient, a weighted
`permute_rows`, and in the same sweep the dot product that its weight's gradient is."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from marin.kernels.backend import Backend, choose
from marin.kernels.combine_rows import reference


def forward(
    rows: Float[Array, "R w"],
    slots: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    dtype: DTypeLike,
    backend: Backend | None,
) -> Float[Array, "T w"]:
    """The chosen implementation, without a gradient; see `reference.combine_rows`."""
    chosen = choose("combine_rows", backend)
    if chosen != "reference":
        from marin.kernels.combine_rows import pallas_gpu

        interpret = chosen == "interpret"
        return pallas_gpu.combine_rows(rows, slots, weights, dtype, interpret=interpret)
    return reference.combine_rows(rows, slots, weights, dtype)


@partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def combine_rows(
    rows: Float[Array, "R w"],
    slots: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    assignments: Int[Array, " R"],
    dtype: DTypeLike,
    backend: Backend | None = None,
) -> Float[Array, "T w"]:
    """Token `t` is the sum over `j` of `weights[t, j] * rows[slots[t, j]]`; slot -1 adds nothing.

    `assignments` is the inverse of `slots` (see `permute_rows.invert_slots`); only the backward
    pass reads it. The sum is float32 and rounded once to `dtype`; gradients of `weights` are
    float32.
    """
    return forward(rows, slots, weights, dtype, backend)


def _forward(
    rows: Array,
    slots: Array,
    weights: Array,
    assignments: Array,
    dtype: DTypeLike,
    backend: Backend | None,
) -> tuple[Array, tuple[Array, ...]]:
    y = forward(rows, slots, weights, dtype, backend)
    return y, (rows, slots, weights, assignments)


def _backward(
    dtype: DTypeLike, backend: Backend | None, saved: tuple[Array, ...], dy: Array
) -> tuple[Array, None, Array, None]:
    rows, slots, weights, assignments = saved
    sources = jnp.where(assignments < 0, -1, assignments // slots.shape[1])
    scale = (
        weights.reshape(-1)
        .at[assignments]
        .get(mode="fill", fill_value=0, wrap_negative_indices=False)
    )
    chosen = choose("combine_rows", backend)
    if chosen == "reference":
        d_rows, dots = reference.backward(rows, dy, sources, scale)
    else:
        from marin.kernels.combine_rows import pallas_gpu

        interpret = chosen == "interpret"
        d_rows, dots = pallas_gpu.backward(rows, dy, sources, scale, interpret=interpret)
    d_weights = dots.at[slots].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return d_rows, None, d_weights, None


combine_rows.defvjp(_forward, _backward)
