"""What `rank_in_group` is measured on: random experts, against a sort and against a one-hot sum."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from marin.kernels.backend import Backend
from marin.kernels.measure import Case, Shape
from marin.kernels.rank_in_group.api import rank_in_group

GROUPS = 384


def cases(shape: Shape) -> list[Case]:
    groups = jax.random.randint(jax.random.key(0), (shape.rows,), -1, GROUPS, jnp.int32)

    def run(backend: Backend) -> Callable[..., Any]:
        return lambda g: rank_in_group(g, GROUPS, backend)

    def one_hot(groups: Array) -> tuple[Array, Array]:
        chosen = jax.nn.one_hot(groups, GROUPS, dtype=jnp.int32)
        before = jnp.cumsum(chosen, axis=0) - chosen
        rank = jnp.sum(before * chosen, axis=1)
        return jnp.where(groups < 0, -1, rank), chosen.sum(axis=0)

    rivals = {"xla sort": run("reference"), "xla one-hot": one_hot}
    return [Case("rank_in_group", (groups,), run, run, 0.0, rivals, 8 * shape.rows)]
