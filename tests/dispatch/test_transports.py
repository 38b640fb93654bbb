"""Every transport is `dense` in value and gradient where nothing is dropped."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from marin.dispatch import (
    Dense,
    Experts,
    Local,
    PooledWave,
    Routing,
    Transport,
    moe,
    parse_transport,
)
from marin.errors import MarinError

ROOMY = PooledWave(waves=2, transport_capacity=16.0, receiver_capacity=16.0)
# Small programs: the time goes into compiling them.
QUICK = {"xla_backend_optimization_level": 0}


def mesh_of(replica: int = 1, data: int = 1, expert: int = 1, model: int = 1) -> Mesh:
    shape = (replica, data, expert, model)
    axes = ("replica", "data", "expert", "model")
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * 4)


def problem(
    *, tokens: int, k: int, num_experts: int, w: int = 16, m: int = 8, dtype=jnp.float32, seed=0
) -> tuple[jax.Array, Routing, Experts]:
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


@partial(jax.jit, static_argnames=("transport", "mesh"), compiler_options=QUICK)
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


def assert_close(actual, expected, tolerance: float) -> None:
    """Leaf by leaf, relative to the largest entry of the expected leaf."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * max(np.abs(e).max(), 1e-30))


@pytest.mark.parametrize("transport", [Local(), ROOMY], ids=["local", "pooled_wave"])
@pytest.mark.parametrize(
    "mesh",
    [{"expert": 1}, {"expert": 4, "replica": 2}, {"data": 2, "expert": 2, "model": 2}],
    ids=["one", "ep4", "tp2"],
)
def test_transport_equals_dense_in_value_and_gradient(transport: Transport, mesh: dict) -> None:
    x, routing, experts = problem(tokens=64, k=2, num_experts=12)
    expected, dense = outcome(x, routing, experts, transport=Dense(), mesh=mesh_of())
    actual, stats = outcome(x, routing, experts, transport=transport, mesh=mesh_of(**mesh))
    assert_close(actual, expected, 1e-5)
    assert int(stats.dropped_sender) == int(stats.dropped_receiver) == int(stats.tokens_lost) == 0
    np.testing.assert_array_equal(stats.load, dense.load)
    assert int(stats.device_rows.sum()) == int(stats.assigned) == 2 * int(routing.valid.sum())


def test_pooled_wave_in_a_scan_with_remat_has_the_gradient_of_dense() -> None:
    x, routing, experts = problem(tokens=32, k=2, num_experts=4)
    stacked = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), experts)

    def loss(stacked: Experts, transport: Transport) -> jax.Array:
        @jax.checkpoint
        def layer(h, weights):
            y, stats = moe(h, routing, weights, transport=transport, mesh=mesh_of(expert=4))
            return h + y, stats.assigned

        return jnp.sum(jnp.sin(jax.lax.scan(layer, x, stacked)[0]))

    gradient = jax.jit(jax.grad(loss), static_argnums=1, compiler_options=QUICK)
    assert_close(gradient(stacked, ROOMY), gradient(stacked, Dense()), 1e-5)


@pytest.mark.parametrize(
    "transport",
    [
        PooledWave(transport_capacity=0.5, receiver_capacity=0.4, policy="fair"),
        PooledWave(waves=1, transport_capacity=0.4, receiver_capacity=2.0),
    ],
    ids=["both", "sender"],
)
def test_statistics_add_up_under_tight_capacity(transport: PooledWave) -> None:
    x, routing, experts = problem(tokens=64, k=2, num_experts=8)
    (y, _), stats = outcome(x, routing, experts, transport=transport, mesh=mesh_of(expert=4))
    valid = int(routing.valid.sum())
    dropped = int(stats.dropped_sender) + int(stats.dropped_receiver)
    assert int(stats.assigned) == 2 * valid
    assert int(stats.device_rows.sum()) == int(stats.assigned) - dropped
    assert dropped > 0
    assert int(stats.tokens_lost) == valid - int(jnp.any(y != 0, axis=1).sum())
    assert 0 < float(stats.weight_lost) < float(stats.weight)


@pytest.mark.parametrize(
    ("mesh", "num_experts", "tokens", "message"),
    [
        ({"expert": 4}, 6, 64, "experts is 6"),
        ({"data": 8}, 8, 60, "60 tokens cannot be split over 8"),
    ],
)
def test_shapes_that_do_not_fit_the_mesh_are_one_clear_line(
    mesh: dict, num_experts: int, tokens: int, message: str
) -> None:
    x, routing, experts = problem(tokens=tokens, k=2, num_experts=num_experts)
    with pytest.raises(MarinError, match=message):
        moe(x, routing, experts, transport=Local(), mesh=mesh_of(**mesh))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wave", {}, "expected one of"),
        ("pooled_wave", {"wavs": 3}, "unknown option 'wavs'"),
        ("pooled_wave", {"waves": 0}, "waves is 0"),
        ("pooled_wave", {"policy": "rank"}, "policy is 'rank'"),
        ("pooled_wave", {"receiver_capacity": float("nan")}, "receiver_capacity is nan"),
    ],
)
def test_a_transport_that_makes_no_sense_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(MarinError, match=message):
        parse_transport(name, **options)
    assert parse_transport("pooled_wave", waves=2) == PooledWave(waves=2)
