"""Every transport is `dense` in value and gradient where nothing is dropped."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.dispatch import (
    Dense,
    Local,
    PooledWave,
    Ragged,
    Ring,
    Routing,
    Transport,
    moe,
    parse_transport,
)
from marin.errors import MarinError

TOKENS, K = 64, 2
ROOMY = PooledWave(waves=2, transport_capacity=8.0, receiver_capacity=8.0)
STRIPED = PooledWave(waves=1, transport_capacity=8.0, receiver_capacity=8.0, stripe=True)
# (transport, local experts, devices of each axis)
GRID = [
    *(
        (t, local, {"expert": ep})
        for t in (Ring(), ROOMY, Ragged())
        for local, ep in ((1, 8), (3, 2), (12, 1))
    ),
    *((t, 2, {"expert": 4}) for t in (Local(), Ring(), ROOMY, Ragged(chunks=3), STRIPED)),
    (ROOMY, 2, {"data": 2, "expert": 2, "model": 2}),
]
# What is left of 1, 2, 3 and 12 local experts on 1, 2, 4 and 8 devices; `make test-slow` runs it.
REST = [
    (transport, local, {"expert": ep})
    for transport in (Ring(), ROOMY, Ragged())
    for local in (1, 2, 3, 12)
    for ep in (1, 2, 4, 8)
    if (transport, local, {"expert": ep}) not in GRID
]
MOST_EXPERTS = (12, 96)


def name(case: tuple) -> str:
    transport, local, mesh = case
    axes = "".join(f"-{axis}{size}" for axis, size in mesh.items())
    stripe = "-striped" if transport == STRIPED else ""
    return f"{type(transport).__name__}{stripe}-{local}local{axes}"


def routings(num_experts: int) -> dict[str, Routing]:
    """Random; every token to the last expert; half of the experts unused and one device all
    padding."""
    rng = np.random.default_rng(1)
    weights = jnp.asarray(rng.random((TOKENS, K)), jnp.float32)
    random = np.argsort(rng.random((TOKENS, max(num_experts, K))), axis=1)[:, :K] % num_experts
    valid = jnp.asarray(rng.random(TOKENS) > 0.2)
    return {
        "random": Routing(jnp.asarray(random, jnp.int32), weights, valid),
        "one expert": Routing(jnp.full((TOKENS, K), num_experts - 1, jnp.int32), weights, valid),
        "half unused": Routing(
            jnp.asarray(random // 2, jnp.int32), weights, jnp.arange(TOKENS) >= TOKENS // 8
        ),
    }


@pytest.fixture(scope="module")
def expected(bench):
    """What `dense` says: (number of experts, routing) -> outcome. One program serves many numbers:
    experts that nobody chooses fill them up to one of `MOST_EXPERTS`."""

    @cache
    def answer(num_experts: int, which: str):
        x, _, experts = bench.problem(tokens=TOKENS, k=K, num_experts=num_experts)
        most = next(most for most in MOST_EXPERTS if num_experts <= most)
        unused = ((0, most - num_experts), (0, 0), (0, 0))
        filled = jax.tree.map(lambda p: jnp.pad(p, unused), experts)
        routing = routings(num_experts)[which]
        (y, (dx, d_weights, d_experts)), stats = bench.outcome(
            x, routing, filled, transport=Dense(), mesh=bench.mesh_of()
        )
        d_experts = jax.tree.map(lambda p: p[:num_experts], d_experts)
        return (y, (dx, d_weights, d_experts)), stats._replace(load=stats.load[:num_experts])

    return answer


@pytest.mark.parametrize(
    "case", [*GRID, *(pytest.param(case, marks=pytest.mark.slow) for case in REST)], ids=name
)
def test_transport_equals_dense_in_value_and_gradient_for_any_routing(
    bench, expected, case: tuple
) -> None:
    transport, local, axes = case
    num_experts = local * axes["expert"]
    x, _, experts = bench.problem(tokens=TOKENS, k=K, num_experts=num_experts)
    for which, routing in routings(num_experts).items():
        answer, dense = expected(num_experts, which)
        mesh = bench.mesh_of(**axes)
        actual, stats = bench.outcome(x, routing, experts, transport=transport, mesh=mesh)
        bench.assert_close(actual, answer, 1e-5)
        lost = (stats.dropped_sender, stats.dropped_receiver, stats.tokens_lost)
        assert [int(n) for n in lost] == [0, 0, 0]
        np.testing.assert_array_equal(stats.load, dense.load)
        assert int(stats.device_rows.sum()) == int(stats.assigned) == K * int(routing.valid.sum())


@pytest.mark.parametrize("transport", [Ring(), ROOMY, Ragged()], ids=["ring", "wave", "ragged"])
def test_bfloat16_rows_agree_to_two_percent_and_float32_weights_get_float32_gradients(
    bench, expected, transport: Transport
) -> None:
    x, _, experts = bench.problem(tokens=TOKENS, k=K, num_experts=8, dtype=jnp.bfloat16)
    routing = routings(8)["random"]
    answer, _ = expected(8, "random")
    mesh = bench.mesh_of(expert=4)
    actual, _ = bench.outcome(x, routing, experts, transport=transport, mesh=mesh)
    bench.assert_close(actual, answer, 2e-2)
    assert actual[0].dtype == jnp.bfloat16
    assert actual[1][2].gate.dtype == jnp.float32


def test_pooled_wave_in_a_scan_with_remat_has_the_gradient_of_dense(bench) -> None:
    x, routing, experts = bench.problem(tokens=32, k=2, num_experts=4)
    stacked = jax.tree.map(lambda p: jnp.stack([p, 0.5 * p]), experts)

    def loss(stacked, transport: Transport) -> jax.Array:
        @jax.checkpoint
        def layer(h, weights):
            mesh = bench.mesh_of(expert=4)
            y, stats = moe(h, routing, weights, transport=transport, mesh=mesh)
            return h + y, stats.assigned

        return jnp.sum(jnp.sin(jax.lax.scan(layer, x, stacked)[0]))

    gradient = jax.jit(jax.grad(loss), static_argnums=1, compiler_options=bench.quick)
    bench.assert_close(gradient(stacked, STRIPED), gradient(stacked, Dense()), 1e-5)


@pytest.mark.parametrize(
    ("axes", "num_experts", "tokens", "transport", "message"),
    [
        ({"expert": 4}, 6, 64, Local(), "experts is 6"),
        ({"data": 8}, 8, 60, Ring(), "60 tokens cannot be split over 8"),
        ({"expert": 8}, 8, 24, STRIPED, "stripe deals 3 tokens per device over 8"),
    ],
)
def test_shapes_that_do_not_fit_the_mesh_are_one_clear_line(
    bench, axes: dict, num_experts: int, tokens: int, transport: Transport, message: str
) -> None:
    x, routing, experts = bench.problem(tokens=tokens, k=2, num_experts=num_experts)
    with pytest.raises(MarinError, match=message):
        moe(x, routing, experts, transport=transport, mesh=bench.mesh_of(**axes))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("wave", {}, "expected one of"),
        ("pooled_wave", {"wavs": 3}, "unknown option 'wavs'"),
        ("pooled_wave", {"waves": 0}, "waves is 0"),
        ("pooled_wave", {"policy": "rank"}, "policy is 'rank'"),
        ("pooled_wave", {"receiver_capacity": float("nan")}, "receiver_capacity is nan"),
        ("ragged", {"chunks": 0}, "chunks is 0"),
        ("ragged", {"buffer_factor": -1.0}, "buffer_factor is -1"),
        ("ragged", {"policy": "fair"}, "policy is 'fair'"),
    ],
)
def test_a_transport_that_makes_no_sense_is_refused(name: str, options: dict, message: str) -> None:
    with pytest.raises(MarinError, match=message):
        parse_transport(name, **options)


def test_a_transport_is_made_from_its_name_and_options() -> None:
    assert parse_transport("pooled_wave", waves=2) == PooledWave(waves=2)
