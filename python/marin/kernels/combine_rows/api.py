"""`combine_rows` with its gradient: rows receive their token's gradient by `permute_rows`."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from marin.kernels.backend import Backend, choose
from marin.kernels.combine_rows import reference
from marin.kernels.permute_rows.api import forward as permute


def forward(
    rows: Float[Array, "R w"],
    slots: Int[Array, "T K"],
    weights: Float[Array, "T K"],
    dtype: DTypeLike,
    backend: Backend | None,
) -> Float[Array, "T w"]:
    """The chosen implementation, without a gradient; see `reference.combine_rows`."""
    choose("combine_rows", backend)
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
    d_rows = permute(dy, sources, scale, backend)
    dots = reference.row_dots(rows, dy, sources)
    d_weights = dots.at[slots].get(mode="fill", fill_value=0, wrap_negative_indices=False)
    return d_rows.astype(rows.dtype), None, d_weights, None


combine_rows.defvjp(_forward, _backward)
