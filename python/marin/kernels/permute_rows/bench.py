"""What `permute_rows` is measured on: random assignments of every token to its K rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from marin.kernels.backend import Backend
from marin.kernels.measure import Case, Shape, probe
from marin.kernels.permute_rows.api import invert_slots, permute_rows


def random_slots(shape: Shape) -> Array:
    """A random place in a full buffer for every assignment."""
    order = jax.random.permutation(jax.random.key(1), shape.rows)
    return order.astype(jnp.int32).reshape(shape.tokens, shape.top_k)


def cases(shape: Shape) -> list[Case]:
    x = jax.random.normal(jax.random.key(0), (shape.tokens, shape.width), shape.dtype)
    slots = random_slots(shape)
    assignments = invert_slots(slots, shape.rows)

    def run(backend: Backend) -> Callable[..., Any]:
        return partial(permute_rows, backend=backend)

    def check(backend: Backend) -> Callable[..., Any]:
        def value_and_gradient(x: Array, assignments: Array, slots: Array) -> tuple[Array, Array]:
            y, back = jax.vjp(lambda a: permute_rows(a, assignments, slots, backend), x)
            return y, back(probe(y))[0]

        return value_and_gradient

    def take(x: Array, assignments: Array, slots: Array) -> Array:
        return jnp.take(x, assignments // slots.shape[1], axis=0, mode="clip")

    item = jnp.dtype(shape.dtype).itemsize
    # Each token's row is read K times at the memory's interface unless a cache keeps it.
    moved = 2 * shape.rows * shape.width * item + 4 * shape.rows
    arguments = (x, assignments, slots)
    return [Case("permute_rows", arguments, run, check, 1e-2, {"xla": take}, moved)]
