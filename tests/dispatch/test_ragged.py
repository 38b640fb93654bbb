"""The index arithmetic of the ragged exchange, against a model of the primitive at index level."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from marin.dispatch.drops import plain_fair_quotas
from marin.dispatch.ragged_exchange import emulate, primitive, ragged_exchange
from marin.dispatch.ragged_plan import Offsets, fair_quotas, offsets

DEVICES, SEND, RECEIVE = 8, 24, 40


def primitive_model(
    operands: list[np.ndarray], outputs: list[np.ndarray], plans: list[Offsets]
) -> list[np.ndarray]:
    """`jax.lax.ragged_all_to_all` as its documentation says: device s copies the slice at
    input_offsets[d] of its operand to output_offsets[d] of the output of device d."""
    results = [out.copy() for out in outputs]
    written = [np.zeros(len(out), int) for out in outputs]
    for s, plan in enumerate(plans):
        for d, result in enumerate(results):
            size = int(plan.send_sizes[d])
            assert size == int(plans[d].recv_sizes[s])
            source, target = int(plan.input_offsets[d]), int(plan.output_offsets[d])
            assert source + size <= len(operands[s])
            assert target + size <= len(result)
            result[target : target + size] = operands[s][source : source + size]
            written[d][target : target + size] += 1
    assert all(w.max(initial=0) <= 1 for w in written)
    return results


def plans_of(sizes: np.ndarray) -> list[Offsets]:
    plan = jax.vmap(offsets, (None, 0))(jnp.asarray(sizes), jnp.arange(len(sizes)))
    return [Offsets(*(np.asarray(a)[i] for a in plan)) for i in range(len(sizes))]


@st.composite
def size_matrices(draw) -> np.ndarray:
    """Adversarial ones included: all to one, all from one, nothing, only to oneself."""
    kind = draw(st.sampled_from(["any", "to one", "from one", "none", "own"]))
    each = RECEIVE // DEVICES
    sizes = np.zeros((DEVICES, DEVICES), np.int32)
    if kind == "any":
        cells = draw(st.lists(st.integers(0, 3), min_size=64, max_size=64))
        sizes = np.array(cells, np.int32).reshape(DEVICES, DEVICES)
    elif kind == "to one":
        sizes[:, draw(st.integers(0, DEVICES - 1))] = each
    elif kind == "from one":
        sizes[draw(st.integers(0, DEVICES - 1))] = 3
    elif kind == "own":
        np.fill_diagonal(sizes, SEND)
    return sizes


def on_devices(bench, function):
    """`function(rows, sizes)` on every device of an expert axis of 8."""
    return jax.shard_map(
        function,
        mesh=bench.mesh_of(expert=DEVICES),
        in_specs=(P("expert"), P()),
        out_specs=P("expert"),
        check_vma=False,
    )


def test_emulation_gives_what_the_primitive_is_documented_to_give(bench) -> None:
    run = jax.jit(on_devices(bench, partial(emulate, out_rows=RECEIVE, axis="expert")))
    rows = np.arange(1, DEVICES * SEND + 1, dtype=np.float32)[:, None] * np.array([1.0, -1.0])
    rows = rows.astype(np.float32)

    @settings(deadline=None, max_examples=40, database=None)
    @given(size_matrices())
    def check(sizes: np.ndarray) -> None:
        empty = [np.zeros((RECEIVE, 2), np.float32)] * DEVICES
        expected = primitive_model(np.split(rows, DEVICES), empty, plans_of(sizes))
        np.testing.assert_array_equal(run(rows, sizes), np.concatenate(expected))

    check()


@settings(deadline=None, max_examples=40, database=None)
@given(size_matrices())
def test_the_way_back_restores_every_row(sizes: np.ndarray) -> None:
    rng = np.random.default_rng(0)
    rows = [rng.random((SEND, 1)) for _ in range(DEVICES)]
    there = primitive_model(rows, [np.zeros((RECEIVE, 1))] * DEVICES, plans_of(sizes))
    back = primitive_model(there, [np.zeros((SEND, 1))] * DEVICES, plans_of(sizes.T.copy()))
    for s in range(DEVICES):
        sent = sizes[s].sum()
        np.testing.assert_array_equal(back[s][:sent], rows[s][:sent])
        assert not back[s][sent:].any()


def test_the_gradient_is_the_exchange_back(bench) -> None:
    sizes = np.random.default_rng(0).integers(0, 4, (DEVICES, DEVICES)).astype(np.int32)
    there = on_devices(bench, lambda r, s: ragged_exchange(r, s, RECEIVE, "expert"))
    rows = jnp.ones((DEVICES * SEND, 1))
    weights = jnp.arange(DEVICES * RECEIVE, dtype=jnp.float32)[:, None]
    gradient = jax.jit(jax.grad(lambda r: jnp.sum(there(r, sizes) * weights)))(rows)
    parts = np.split(np.asarray(weights), DEVICES)
    empty = [np.zeros((SEND, 1), np.float32)] * DEVICES
    expected = primitive_model(parts, empty, plans_of(sizes.T.copy()))
    np.testing.assert_array_equal(gradient, np.concatenate(expected))


def test_the_primitive_lowers_for_cuda(bench) -> None:
    run = on_devices(bench, partial(primitive, out_rows=RECEIVE, axis="expert"))
    arguments = jnp.zeros((DEVICES * SEND, 2)), jnp.zeros((DEVICES, DEVICES), jnp.int32)
    lowered = jax.jit(run).trace(*arguments).lower(lowering_platforms=("cuda",))
    assert "ragged_all_to_all" in lowered.as_text()


@settings(deadline=None, max_examples=60, database=None)
@given(st.lists(st.integers(0, 30), min_size=16, max_size=16), st.integers(0, 60))
def test_quotas_fill_the_buffer_and_nobody_gets_less_than_a_smaller_demand(
    cells: list[int], capacity: int
) -> None:
    demand = np.array(cells, np.int32).reshape(4, 4)
    quota = np.asarray(fair_quotas(jnp.asarray(demand), capacity))
    np.testing.assert_array_equal(quota, plain_fair_quotas(demand, capacity))
    assert np.all(quota <= demand)
    np.testing.assert_array_equal(quota.sum(0), np.minimum(demand.sum(0), capacity))
    for d in range(4):
        short = quota[:, d] < demand[:, d]
        if short.any():
            assert quota[:, d][short].min() >= quota[:, d].max() - 1
