"""Moving true group lengths: the GPU primitive, and an equal emulation where it does not exist."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.dispatch.ragged_plan import exclusive_cumsum, offsets
from marin.kernels.backend import Backend, choose


def emulate(
    rows: Float[Array, "S w"], sizes: Int[Array, "n n"], out_rows: int, axis: str
) -> Float[Array, "R w"]:
    """The result of `jax.lax.ragged_all_to_all` into zeros, by gathering all rows everywhere."""
    here = jax.lax.axis_index(axis)
    gathered = jax.lax.all_gather(rows, axis)
    position = jnp.arange(out_rows, dtype=jnp.int32)
    ends = jnp.cumsum(sizes[:, here])
    sender = jnp.searchsorted(ends, position, side="right").astype(jnp.int32)
    source = exclusive_cumsum(sizes, 1)[:, here].at[sender].get(mode="clip")
    source += position - (ends - sizes[:, here]).at[sender].get(mode="clip")
    found = gathered.at[sender, source].get(mode="clip")
    return jnp.where((position < ends[-1])[:, None], found, 0)


def primitive(
    rows: Float[Array, "S w"], sizes: Int[Array, "n n"], out_rows: int, axis: str
) -> Float[Array, "R w"]:
    """`jax.lax.ragged_all_to_all` into zeros."""
    plan = offsets(sizes, jax.lax.axis_index(axis))
    output = jnp.zeros((out_rows, rows.shape[1]), rows.dtype)
    moved: Array = jax.lax.ragged_all_to_all(rows, output, *plan, axis_name=axis)
    return moved


def _move(rows: Array, sizes: Array, out_rows: int, axis: str, backend: Backend | None) -> Array:
    chosen = choose("ragged_all_to_all", backend)
    return (primitive if chosen == "pallas_gpu" else emulate)(rows, sizes, out_rows, axis)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def ragged_exchange(
    rows: Float[Array, "S w"],
    sizes: Int[Array, "n n"],
    out_rows: int,
    axis: str,
    backend: Backend | None = None,
) -> Float[Array, "R w"]:
    """Sends `sizes[s, d]` rows from device s to device d; see `ragged_plan` for the layout.

    Rows past the received ones are zero. `out_rows` must hold what any device receives. The
    gradient is the exchange with transposed sizes.
    """
    return _move(rows, sizes, out_rows, axis, backend)


def _forward(
    rows: Array, sizes: Array, out_rows: int, axis: str, backend: Backend | None
) -> tuple[Array, tuple[Array, Array]]:
    empty = jnp.zeros((rows.shape[0], 0), rows.dtype)
    return _move(rows, sizes, out_rows, axis, backend), (sizes, empty)


def _backward(
    out_rows: int, axis: str, backend: Backend | None, saved: tuple[Array, Array], dy: Array
) -> tuple[Array, None]:
    sizes, empty = saved
    return _move(dy, sizes.T, empty.shape[0], axis, backend), None


ragged_exchange.defvjp(_forward, _backward)
