"""What `grouped_swiglu` is measured on: all assignments of a device, spread unevenly over its
experts; forward, and forward with backward."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from marin.kernels.backend import Backend
from marin.kernels.grouped_swiglu.api import block_rows, grouped_swiglu
from marin.kernels.grouped_swiglu.layout import block_layout
from marin.kernels.measure import Case, Shape, probe
from marin.kernels.permute_rows.api import invert_slots


def cases(shape: Shape) -> list[Case]:
    key = jax.random.split(jax.random.key(0), 5)
    sizes = [(shape.experts, shape.width, shape.inner)] * 2
    sizes.append((shape.experts, shape.inner, shape.width))
    weights = tuple(
        (jax.random.normal(k, s) / s[1] ** 0.5).astype(shape.dtype)
        for k, s in zip(key[:3], sizes, strict=True)
    )
    popularity = jnp.linspace(0.5, 1.5, shape.experts)
    ids = jax.random.categorical(key[3], jnp.log(popularity), shape=(shape.rows,))
    block = block_rows(shape.rows / shape.experts, "pallas_gpu")
    layout = block_layout(ids.astype(jnp.int32), shape.experts, rows=shape.rows, block=block)
    size = layout.expert_of_block.shape[0] * block
    taken = invert_slots(layout.slots[:, None], size) >= 0
    rows = jax.random.normal(key[4], (size, shape.width), shape.dtype)
    rows = jnp.where(taken[:, None], rows, 0)
    # Blocks of one expert are contiguous, so per-expert sizes with their padding are groups for
    # tools that take sizes instead of blocks.
    padded = -(-layout.counts // block) * block

    def run(backend: Backend) -> Callable[..., Any]:
        def forward(rows: Array, owner: Array, used: Array, weights: Any, padded: Array) -> Array:
            return grouped_swiglu(rows, owner, used, *weights, backend)

        return forward

    def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
        def both(rows: Array, owner: Array, used: Array, weights: Any, padded: Array) -> Any:
            y, back = jax.vjp(lambda r, w: function(r, owner, used, w, padded), rows, weights)
            inside = jnp.arange(rows.shape[0])[:, None] < used * block
            return jnp.where(inside, y, 0), back(jnp.where(taken[:, None], probe(y), 0))

        return both

    def ragged(product: Callable[..., Array]) -> Callable[..., Any]:
        def forward(rows: Array, owner: Array, used: Array, weights: Any, padded: Array) -> Array:
            gate, up, down = weights
            hidden = jax.nn.silu(product(rows, gate, padded)) * product(rows, up, padded)
            return product(hidden, down, padded)

        return forward

    def checked(backend: Backend) -> Callable[..., Any]:
        def both(*arguments: Any) -> Any:
            y, (d_rows, d_weights) = with_gradient(run(backend))(*arguments)
            return y, jnp.where(taken[:, None], d_rows, 0), d_weights

        return both

    rivals = {"xla": ragged(jax.lax.ragged_dot)}
    if (tokamax := _tokamax()) is not None:
        rivals["tokamax"] = ragged(tokamax)
    arguments = (rows, layout.expert_of_block, layout.blocks_used, weights, padded)
    flops = 6 * shape.rows * shape.width * shape.inner
    return [
        Case("grouped_swiglu", arguments, run, checked, 2e-2, rivals, 0, flops),
        Case(
            "grouped_swiglu with gradient",
            arguments,
            lambda backend: with_gradient(run(backend)),
            checked,
            2e-2,
            {name: with_gradient(rival) for name, rival in rivals.items()},
            0,
            3 * flops,
        ),
    ]


def _tokamax() -> Callable[..., Array] | None:
    """tokamax's ragged product, where it is installed."""
    try:
        import tokamax
    except ImportError:
        return None

    def product(rows: Array, weights: Array, sizes: Array) -> Array:
        result: Array = tokamax.ragged_dot(rows, weights, sizes)
        return result

    return product
