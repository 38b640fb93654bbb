"""What `combine_rows` is measured on: a full buffer in random order, summed into its tokens."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from marin.kernels.backend import Backend
from marin.kernels.combine_rows.api import combine_rows
from marin.kernels.measure import Case, Shape, probe
from marin.kernels.permute_rows.api import invert_slots
from marin.kernels.permute_rows.bench import random_slots


def cases(shape: Shape) -> list[Case]:
    rows = jax.random.normal(jax.random.key(0), (shape.rows, shape.width), shape.dtype)
    slots = random_slots(shape)
    weights = jax.random.uniform(jax.random.key(2), slots.shape, jnp.float32)
    assignments = invert_slots(slots, shape.rows)

    def run(backend: Backend) -> Callable[..., Any]:
        def forward(rows: Array, slots: Array, weights: Array, assignments: Array) -> Array:
            return combine_rows(rows, slots, weights, assignments, shape.dtype, backend)

        return forward

    def check(backend: Backend) -> Callable[..., Any]:
        def value_and_gradient(
            rows: Array, slots: Array, weights: Array, assignments: Array
        ) -> tuple[Array, tuple[Array, ...]]:
            y, back = jax.vjp(lambda r, w: run(backend)(r, slots, w, assignments), rows, weights)
            return y, back(probe(y))

        return value_and_gradient

    def gather_sum(rows: Array, slots: Array, weights: Array, assignments: Array) -> Array:
        gathered = jnp.take(rows, slots, axis=0, mode="clip")
        summed = jnp.einsum(
            "tk,tkw->tw", weights.astype(rows.dtype), gathered, preferred_element_type=jnp.float32
        )
        return summed.astype(rows.dtype)

    item = jnp.dtype(shape.dtype).itemsize
    moved = (shape.rows + shape.tokens) * shape.width * item + 8 * shape.rows
    arguments = (rows, slots, weights, assignments)
    return [Case("combine_rows", arguments, run, check, 1e-2, {"xla": gather_sum}, moved)]
