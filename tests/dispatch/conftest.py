"""Small problems and the two ways to look at a transport's answer."""

from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from marin.compat import QUICK_COMPILE
from marin.dispatch import Experts, Routing, Transport, moe


def mesh_of(replica: int = 1, data: int = 1, expert: int = 1, model: int = 1) -> Mesh:
    shape = (replica, data, expert, model)
    axes = ("replica", "data", "expert", "model")
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * 4)


def problem(
    *, tokens: int, k: int, num_experts: int, w: int = 16, m: int = 8, dtype=jnp.float32, seed=0
) -> tuple[jax.Array, Routing, Experts]:
    """Random rows, distinct random experts, a fifth of the tokens padding."""
    rng = np.random.default_rng(seed)
    chosen = np.argsort(rng.random((tokens, num_experts)), axis=1)[:, :k]
    routing = Routing(
        jnp.asarray(chosen, jnp.int32),
        jnp.asarray(rng.random((tokens, k)), jnp.float32),
        jnp.asarray(rng.random(tokens) > 0.2),
    )
    shapes = ((num_experts, w, m), (num_experts, w, m), (num_experts, m, w))
    experts = Experts(*(jnp.asarray(rng.normal(size=s) / 3, jnp.float32) for s in shapes))
    return jnp.asarray(rng.normal(size=(tokens, w)), dtype), routing, experts


@partial(jax.jit, static_argnames=("transport", "mesh"), compiler_options=QUICK_COMPILE)
def outcome(x, routing: Routing, experts: Experts, *, transport: Transport, mesh: Mesh):
    """(y, gradients of x, combine weights and expert weights) of a loss without symmetry, and the
    statistics."""

    def loss(x, weights, experts):
        y, stats = moe(
            x, routing._replace(weights=weights), experts, transport=transport, mesh=mesh
        )
        probe = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape)
        return jnp.sum(y.astype(jnp.float32) * probe), (y, stats)

    (_, (y, stats)), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(
        x, routing.weights, experts
    )
    return (y, gradients), stats


@partial(
    jax.jit, static_argnames=("transport", "mesh", "num_sources"), compiler_options=QUICK_COMPILE
)
def forward(x, routing, experts, *, transport: Transport, mesh: Mesh, num_sources: int = 0):
    return moe(x, routing, experts, transport=transport, mesh=mesh, num_sources=num_sources)


def assert_close(actual, expected, tolerance: float) -> None:
    """Leaf by leaf, relative to the largest entry of the expected leaf."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * max(np.abs(e).max(), 1e-30))


@pytest.fixture(scope="session")
def bench() -> SimpleNamespace:
    return SimpleNamespace(
        mesh_of=mesh_of,
        problem=problem,
        outcome=outcome,
        forward=forward,
        assert_close=assert_close,
        quick=QUICK_COMPILE,
    )
