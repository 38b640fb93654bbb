"""Under tight capacity a transport drops exactly what the NumPy model of its policy drops."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marin.dispatch import Dense, PooledWave, Ragged, Transport
from marin.dispatch.drops import (
    Drops,
    cell_drops,
    deal,
    deal_back,
    pooled_wave_drops,
    ragged_drops,
    rank_in_group,
)

DEVICES, TOKENS, K, EXPERTS = 4, 32, 3, 8  # tokens per device


def model(routing, transport: Transport) -> Drops:
    arrays = (
        np.asarray(routing.experts).reshape(DEVICES, TOKENS, K),
        np.asarray(routing.weights).reshape(DEVICES, TOKENS, K),
        np.asarray(routing.valid).reshape(DEVICES, TOKENS),
    )
    drops = ragged_drops if isinstance(transport, Ragged) else pooled_wave_drops
    return drops(*arrays, EXPERTS, transport)


def skewed(bench, seed: int):
    """Experts with unequal popularity, equal weights among the candidates, sources."""
    x, routing, experts = bench.problem(tokens=DEVICES * TOKENS, k=K, num_experts=EXPERTS)
    rng = np.random.default_rng(seed)
    scores = rng.gumbel(size=(DEVICES * TOKENS, EXPERTS)) + np.linspace(0, 2, EXPERTS)
    return (
        x,
        routing._replace(
            experts=jnp.asarray(np.argsort(-scores, axis=1)[:, :K], jnp.int32),
            weights=jnp.asarray(rng.integers(1, 9, size=(DEVICES * TOKENS, K)) / 8, jnp.float32),
            source=jnp.asarray(rng.integers(0, 3, size=DEVICES * TOKENS), jnp.int32),
        ),
        experts,
    )


TIGHT = PooledWave(waves=2, transport_capacity=1.0, receiver_capacity=0.75)


@pytest.mark.parametrize(
    "transport",
    [
        TIGHT,
        replace(TIGHT, policy="arrival"),
        replace(TIGHT, policy="fair", waves=3),
        replace(TIGHT, stripe=True, waves=1),
        Ragged(buffer_factor=0.8, chunks=2),
        Ragged(buffer_factor=0.9, chunks=1, policy="arrival"),
    ],
    ids=["weight", "arrival", "fair", "striped", "ragged", "ragged-arrival"],
)
def test_output_and_statistics_under_tight_capacity_are_those_of_the_model(
    bench, transport: Transport
) -> None:
    mesh = bench.mesh_of(expert=DEVICES)
    for seed in range(3):
        x, routing, experts = skewed(bench, seed)
        drops = model(routing, transport)
        y, stats = bench.forward(x, routing, experts, transport=transport, mesh=mesh, num_sources=3)
        lost = (drops.sender | drops.receiver).reshape(-1, K)
        assert lost.any()
        kept = routing._replace(weights=jnp.where(jnp.asarray(lost), 0.0, routing.weights))
        plain = bench.forward(
            x, kept, experts, transport=Dense(), mesh=bench.mesh_of(), num_sources=3
        )
        bench.assert_close(y, plain[0], 1e-5)

        valid, weights = np.asarray(routing.valid), np.asarray(routing.weights)
        assert int(stats.assigned) == K * valid.sum()
        assert int(stats.dropped_sender) == drops.sender.sum()
        assert int(stats.dropped_receiver) == drops.receiver.sum()
        assert int(stats.tokens_lost) == (lost.all(axis=1) & valid).sum()
        assert int(stats.device_rows.sum()) == int(stats.assigned) - lost.sum()
        np.testing.assert_allclose(stats.weight_lost, weights[lost].sum(), rtol=1e-5)
        np.testing.assert_allclose(stats.weight, weights[valid].sum(), rtol=1e-5)
        source = np.asarray(routing.source)
        per_source = np.bincount(source, lost.sum(axis=1), minlength=3)
        np.testing.assert_array_equal(stats.source_dropped, per_source)
        np.testing.assert_array_equal(stats.source_assigned, K * np.bincount(source[valid]))


def test_no_expert_and_no_sender_always_loses_among_equals() -> None:
    # All weights equal, all loads equal: over many steps every sender and expert must lose alike.
    n, tokens, experts = 4, 32, 8
    ids = np.arange(n * tokens * 2).reshape(n, tokens, 2) % experts
    transport = PooledWave(waves=1, transport_capacity=2.0, receiver_capacity=0.9)
    lost = np.zeros(ids.shape, int)
    rng = np.random.default_rng(0)
    for _ in range(600):
        weights = np.full(ids.shape, rng.random(), np.float32)
        drops = pooled_wave_drops(ids, weights, np.ones(ids.shape[:2], bool), experts, transport)
        lost += drops.receiver
    share = lost.sum(axis=(1, 2)) / lost.sum()
    assert np.all(np.abs(share - 1 / n) < 0.15 / n)
    by_expert = np.bincount(ids.ravel(), lost.ravel())
    assert np.all(np.abs(by_expert / lost.sum() - 1 / experts) < 0.2 / experts)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 2)), max_size=30))
def test_ranks_in_a_group_are_the_sorted_positions(entries: list[tuple[int, int]]) -> None:
    groups = np.array([g for g, _ in entries], np.int64)
    keys = np.array([key for _, key in entries], np.uint32)
    ranks = rank_in_group(groups, keys)
    for i, (g, key) in enumerate(entries):
        ahead = [j for j, (h, other) in enumerate(entries) if h == g and (other, j) < (key, i)]
        assert ranks[i] == (-1 if g < 0 else len(ahead))


def test_dealing_back_undoes_dealing() -> None:
    a = np.arange(4 * 8 * 3).reshape(4, 8, 3)
    dealt = deal(a)
    np.testing.assert_array_equal(dealt[1, :2], [a[0, 1], a[0, 5]])
    np.testing.assert_array_equal(deal_back(dealt), a)


def test_a_cell_keeps_its_heaviest_and_padding_takes_no_place() -> None:
    ids = np.zeros((1, 4, 1), int)
    weights = np.array([0.1, 0.4, 0.9, 0.2], np.float32).reshape(1, 4, 1)
    valid = np.array([[True, True, False, True]])
    lost = cell_drops(ids, weights, valid, num_experts=2, capacity=1.0)
    assert lost.sender.ravel().tolist() == [True, False, False, False]
