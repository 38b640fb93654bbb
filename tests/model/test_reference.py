"""Every part against its float64 formula: values, and gradients by finite differences."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.hero import packed

from marin.compat import QUICK_COMPILE
from marin.dispatch import Local
from marin.model import Batch, HeroConfig, abstract, make_mesh, reference
from marin.model.attend import attend
from marin.model.attention import Attention, exclude_self
from marin.model.batch import context_of
from marin.model.conv import ShortConv
from marin.model.cross_entropy import cross_entropy
from marin.model.hero import Hero
from marin.model.moe import LatentMoE
from marin.model.norm import GatedNorm
from marin.model.rope import rotate
from marin.model.router import Router
from marin.model.sharding import path_of

STEP = 1e-5
RNG = np.random.default_rng(7)
Arrays = dict[str, np.ndarray]


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


def weights_of(make: Callable[[], nnx.Module]) -> tuple[Any, Any, Arrays]:
    """Graph and shapes of a module's parameters, and random float64 arrays for them by path."""
    graph, shapes, *_ = nnx.split(nnx.eval_shape(make), nnx.Param, ...)
    arrays = {}
    for keys, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        path = path_of(keys)
        arrays[path] = 0.3 * normal(*leaf.shape) + (1 if path.endswith("gain") else 0)
    return graph, shapes, arrays


def agree(
    ours: Callable[[Arrays], jax.Array],
    theirs: Callable[[Arrays], np.ndarray],
    arrays: Arrays,
    *,
    tolerance: float = 2e-5,
) -> None:
    """Equal values, and for every array a derivative along a random direction that equals the
    central difference of the reference. A random weighting makes one number of the output."""
    expected = np.asarray(theirs(arrays))
    mix = normal(*expected.shape)

    def scalar(singles: Any) -> tuple[jax.Array, jax.Array]:
        out = ours(singles)
        return jnp.sum(out * mix), out

    singles = {k: jnp.asarray(v, jnp.float32) for k, v in arrays.items()}
    run = jax.jit(jax.grad(scalar, has_aux=True), compiler_options=QUICK_COMPILE)
    grads, value = run(singles)
    np.testing.assert_allclose(
        value, expected, rtol=tolerance, atol=tolerance * np.abs(expected).max()
    )
    for name, array in arrays.items():
        direction = normal(*array.shape)
        ahead, behind = (
            np.sum(mix * theirs({**arrays, name: array + sign * STEP * direction}))
            for sign in (1, -1)
        )
        slope = (ahead - behind) / (2 * STEP)
        got = float(np.sum(np.asarray(grads[name], np.float64) * direction))
        scale = float(np.linalg.norm(np.asarray(grads[name], np.float64)))
        assert abs(got - slope) <= 50 * tolerance * (scale + abs(slope)) + 1e-7, (name, got, slope)


@pytest.fixture(scope="module")
def rows() -> Batch:
    return packed([[6, 4], [3, 5, 1], [12]], 12, 50)


@pytest.fixture(scope="module")
def small(tiny: HeroConfig) -> HeroConfig:
    return dataclasses.replace(
        tiny, hidden=16, layers=2, heads=4, head_dim=8, kv_local=2, kv_global=1, latent=8,
        expert_width=8, experts=5, top_k=2, gate_rank=4, window=3, vocab=50, cross_entropy_block=16,
    )  # fmt: skip


def test_gated_norm(small: HeroConfig) -> None:
    graph, state, arrays = weights_of(lambda: GatedNorm(small, nnx.Rngs(0)))
    agree(
        lambda a: restore(graph, state, a)(a["x"]),
        lambda a: reference.gated_norm(a["x"], a, small.norm_epsilon),
        {**arrays, "x": normal(2, 3, 16)},
    )


def restore(graph: Any, state: Any, arrays: Any) -> Any:
    """The module with these arrays as its weights."""
    return nnx.merge(
        graph, jax.tree_util.tree_map_with_path(lambda keys, _: arrays[path_of(keys)], state)
    )


def test_short_convolution_stops_at_documents(rows: Batch, small: HeroConfig) -> None:
    graph, state, arrays = weights_of(lambda: ShortConv(16, 4))
    context = context_of(small, rows, 1.0)
    segments = np.asarray(rows.segment_ids)
    agree(
        lambda a: restore(graph, state, a)(a["x"], context.tap_masks),
        lambda a: reference.short_conv(a["x"], a["weight"], segments),
        {**arrays, "x": normal(3, 12, 16)},
    )


def test_rotation_and_self_exclusion(rows: Batch, small: HeroConfig) -> None:
    context = context_of(small, rows, 1.0)
    agree(
        lambda a: rotate(a["x"], context.angles),
        lambda a: reference.rotate(a["x"], np.asarray(rows.positions), small.rope_theta),
        {"x": normal(3, 12, 4, 8)},
    )
    agree(
        lambda a: exclude_self(a["out"], a["v"]),
        lambda a: reference.exclude_self(a["out"], a["v"]),
        {"out": normal(3, 12, 4, 8), "v": normal(3, 12, 2, 8)},
    )


@pytest.mark.parametrize("window", [None, 3])
def test_attention_in_blocks_of_queries(
    window: int | None, rows: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marin.model.attend.QUERY_BLOCK", 5)
    segments = np.asarray(rows.segment_ids)
    agree(
        lambda a: attend(
            a["q"], a["k"], a["v"], rows.segment_ids, window=window, backend="reference"
        ),
        lambda a: reference.attend(a["q"], a["k"], a["v"], segments, window),
        {"q": normal(3, 12, 4, 8), "k": normal(3, 12, 2, 8), "v": normal(3, 12, 2, 8)},
    )


@pytest.mark.parametrize("is_global", [False, True])
def test_attention_of_a_layer(is_global: bool, rows: Batch, small: HeroConfig) -> None:
    graph, state, arrays = weights_of(lambda: Attention(small, nnx.Rngs(0)))
    context = context_of(small, rows, 1.1)
    segments, positions = np.asarray(rows.segment_ids), np.asarray(rows.positions)
    agree(
        lambda a: restore(graph, state, a)(a["x"], context, jnp.array(is_global)),
        lambda a: reference.attention(a["x"], a, small, segments, positions, is_global, 1.1),
        {**arrays, "x": normal(3, 12, 16)},
    )


def test_router(rows: Batch, small: HeroConfig) -> None:
    config = dataclasses.replace(small, auxiliary_balance=1.0, sequence_balance=1.0)
    graph, state, arrays = weights_of(lambda: Router(config, nnx.Rngs(0)))
    x, bias = normal(3, 12, 16), 0.1 * normal(5)
    valid = np.asarray(rows.segment_ids) > 0
    mesh = make_mesh()

    def ours(a: Any) -> Any:
        return restore(graph, state, a)(a["x"], jnp.asarray(bias, jnp.float32), valid, mesh)

    def losses(a: Arrays) -> np.ndarray:
        chosen, weights, scores, _ = reference.route(a["x"], a["weight"], bias, config)
        by_row = [
            reference.balance_loss(scores[r], chosen[r], valid[r], config.top_k) for r in range(3)
        ]
        whole = reference.balance_loss(scores, chosen, valid, config.top_k)
        return np.concatenate([[whole, np.mean(by_row)], weights.ravel()])

    agree(
        lambda a: jnp.concatenate(
            [jnp.stack([ours(a)[1].auxiliary, ours(a)[1].sequence]), ours(a)[0].weights.ravel()]
        ),
        losses,
        {**arrays, "x": x},
    )
    choice, report = jax.jit(ours)({k: jnp.float32(v) for k, v in {**arrays, "x": x}.items()})
    chosen, _, scores, alpha = reference.route(x, arrays["weight"], bias, config)
    np.testing.assert_array_equal(choice.experts, chosen)
    expected = reference.next_bias(scores, alpha, valid, config.top_k)
    np.testing.assert_allclose(report.next_bias, expected, atol=1e-5)
    normalizer = np.log(np.exp(scores).sum(-1))
    share = np.exp(scores - normalizer[..., None])
    entropy = -(share * np.log(share)).sum(-1)[valid].mean()
    np.testing.assert_allclose(report.entropy, entropy, rtol=1e-5)
    np.testing.assert_allclose(report.z, (normalizer**2)[valid].mean(), rtol=1e-5)


def test_balance_losses_are_one_with_finite_gradient_at_perfect_balance(
    small: HeroConfig,
) -> None:
    config = dataclasses.replace(small, experts=4, auxiliary_balance=1.0, sequence_balance=1.0)
    graph, state, arrays = weights_of(lambda: Router(config, nnx.Rngs(0)))
    # Token i scores experts i and i + 1 high: every expert has the same load in every row.
    scores = np.tile(np.eye(4) + np.roll(np.eye(4), 1, axis=1), (2, 2, 1))
    weight = np.concatenate([np.eye(4), np.zeros((12, 4))])
    x = np.concatenate([scores, np.zeros((2, 8, 12))], -1)
    valid = jnp.ones((2, 8), bool)

    def both(a: Any) -> Any:
        _, report = restore(graph, state, a)(a["x"], jnp.zeros(4), valid, make_mesh())
        return report.auxiliary + report.sequence

    given = {"weight": jnp.float32(weight), "x": jnp.float32(x)}
    value, grads = jax.jit(jax.value_and_grad(both))(given)
    np.testing.assert_allclose(value, 2.0, rtol=1e-6)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    assert arrays.keys() == {"weight"}


def test_latent_experts_with_shared_experts(rows: Batch, small: HeroConfig) -> None:
    graph, state, arrays = weights_of(lambda: LatentMoE(small, nnx.Rngs(0)))
    context, bias, mesh = context_of(small, rows, 1.0), 0.1 * normal(5), make_mesh()
    segments = np.asarray(rows.segment_ids)
    agree(
        lambda a: restore(graph, state, a)(
            a["x"], context, jnp.asarray(bias, jnp.float32), Local(), mesh
        )[0],
        lambda a: reference.latent_moe(a["x"], a, small, bias, segments),
        {**arrays, "x": normal(3, 12, 16)},
    )


@pytest.mark.parametrize("block", [50, 16, 7, 64])
def test_cross_entropy_for_blocks_that_divide_the_vocabulary_and_that_do_not(block: int) -> None:
    targets = RNG.integers(0, 50, 30)
    targets[:2] = 49, 0
    agree(
        lambda a: jnp.stack(cross_entropy(a["h"], a["w"], jnp.asarray(targets), block)),
        lambda a: np.stack(reference.cross_entropy(a["h"], a["w"], targets)),
        {"h": normal(30, 6), "w": 3 * normal(50, 6)},
    )


def test_the_whole_model(rows: Batch, small: HeroConfig) -> None:
    _, state, arrays = weights_of(lambda: Hero(small, nnx.Rngs(0)))
    bias = 0.1 * normal(small.layers, small.experts)
    mesh = make_mesh()
    tokens, segments, positions, mask = (np.asarray(a) for a in rows)
    graph, _, held = nnx.split(abstract(small), nnx.Param, ...)
    held = jax.tree.map(lambda _: jnp.asarray(bias, jnp.float32), held)

    def ours(a: Any) -> jax.Array:
        params = jax.tree_util.tree_map_with_path(lambda keys, _: a[path_of(keys)], state)
        return nnx.merge(graph, params, held).loss(rows, mesh=mesh)[0]

    agree(
        ours,
        lambda a: np.asarray(reference.loss(a, small, bias, tokens, segments, positions, mask)),
        arrays,
        tolerance=1e-5,
    )
