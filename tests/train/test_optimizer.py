"""The optimizer's groups against slow, obvious references."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from marin.model import make_mesh
from marin.train.newton_schulz import orthogonalize_all
from marin.train.optimizer import Hyper, group_norms, hero_optimizer
from marin.train.rates import compute_scaled_rates

PUBLISHED = [  # batch, steps, hidden, muonh rate
    (1_024, 11_420, 768, 0.01582),
    (2_048, 15_276, 1_024, 0.01441),
    (6_144, 15_128, 1_536, 0.01489),
    (11_264, 20_072, 2_048, 0.01342),
    (11_264, 390_251, 6_144, 0.003290),
]


def hyper(rate: float = 0.02, beta2: float = 0.99) -> Hyper:
    return Hyper(*(jnp.float32(value) for value in (rate, rate / 4, beta2, 1e-15)))


def jitted(labels: dict[str, str]) -> tuple[Any, Any]:
    """`init` and `update` of the optimizer on one device, compiled once per tree of labels."""
    optimizer = hero_optimizer(labels, {name: SPECS[name] for name in labels}, one_device())
    update = jax.jit(lambda g, s, p, h: optimizer.update(g, s, p, hyper=h))
    return optimizer.init, update


def one_device() -> Mesh:
    return make_mesh(devices=jax.devices()[:1])


def tree(seed: int = 0) -> dict[str, jax.Array]:
    draw = np.random.default_rng(seed)
    shapes = {
        "attention": (3, 16, 24),
        "experts": (2, 8, 12, 16),
        "wide": (16, 24),
        "readout": (40, 16),
        "router": (3, 16, 8),
        "gain": (16,),
    }
    return {k: jnp.asarray(draw.normal(size=s), jnp.float32) for k, s in shapes.items()}


SPECS = {
    "attention": P(None, "expert", None),
    "experts": P(None, "expert", None, None),
    "wide": P(None, ("data", "expert")),
    "readout": P(None, "expert"),
    "router": P(None, "expert", None),
    "gain": P(),
}
LABELS = {
    "attention": "muonh",
    "experts": "muonh",
    "wide": "muonh",
    "readout": "adamh",
    "router": "adam",
    "gain": "adam",
}


HERO = jitted(LABELS)


@pytest.mark.parametrize(("batch", "steps", "hidden", "rate"), PUBLISHED)
def test_rates_equal_the_published_ones(batch: int, steps: int, hidden: int, rate: float) -> None:
    tokens = steps * batch * 4_096
    rates = compute_scaled_rates(tokens, hidden, batch * 4_096)
    assert float(f"{rates.muonh:.4g}") == pytest.approx(
        rate, abs=1.01e-5 if rate > 0.01 else 1.01e-6
    )
    assert rates.muonh == pytest.approx(13 / 3 * rates.adam)
    assert 0.95 <= rates.beta2 <= 0.9999
    if hidden == 6_144:
        assert f"{rates.eps:.2e}" == "6.04e-15"


def test_orthogonalized_matrices_have_singular_values_near_one() -> None:
    draw = np.random.default_rng(1)
    stack = jnp.asarray(draw.normal(size=(2, 3, 10, 30)), jnp.float32)
    [done] = orthogonalize_all([stack], [P(None, None, None, None)], one_device())
    values = np.linalg.svd(np.asarray(done), compute_uv=False)
    assert values.min() > 0.3
    assert values.max() < 1.3


@pytest.mark.parametrize("shape", [{"data": 2, "expert": 2}, {"replica": 2}])
def test_the_step_is_the_same_on_any_mesh(shape: dict[str, int]) -> None:
    params, gradients = tree(2), tree(3)
    mesh = make_mesh(**shape)

    def step(mesh: Mesh, params: Any, gradients: Any) -> Any:
        optimizer = hero_optimizer(LABELS, SPECS, mesh)
        updates, _ = optimizer.update(gradients, optimizer.init(params), params, hyper=hyper())
        return updates, group_norms(LABELS, SPECS, {"grad": gradients, "update": updates}, mesh)

    def lay(tree: Any) -> Any:
        return {k: jax.device_put(v, NamedSharding(mesh, SPECS[k])) for k, v in tree.items()}

    whole, norms = jax.jit(partial(step, one_device()))(params, gradients)
    spread, spread_norms = jax.jit(partial(step, mesh))(lay(params), lay(gradients))
    for name in params:
        np.testing.assert_allclose(spread[name], whole[name], atol=1e-5)
    for group in ("muonh", "adamh", "adam"):
        members = [np.asarray(v).ravel() for k, v in gradients.items() if LABELS[k] == group]
        want = float(np.linalg.norm(np.concatenate(members)))
        assert float(norms["grad"][group]) == pytest.approx(want, rel=1e-6)
        for tree_name in ("grad", "update"):
            one, other = norms[tree_name][group], spread_norms[tree_name][group]
            assert float(other) == pytest.approx(float(one), rel=1e-5)


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**16), rate=st.floats(1e-4, 0.3))
def test_muonh_and_adamh_keep_the_norm_of_every_matrix(seed: int, rate: float) -> None:
    params, gradients = tree(seed), tree(seed + 1)
    init, update = HERO
    state = init(params)
    for _ in range(2):
        updates, state = update(gradients, state, params, hyper(rate))
        moved = optax.apply_updates(params, updates)
        for name in ("attention", "experts", "wide", "readout"):
            before = np.linalg.norm(np.asarray(params[name]), axis=(-2, -1))
            after = np.linalg.norm(np.asarray(moved[name]), axis=(-2, -1))
            np.testing.assert_allclose(after, before, rtol=1e-5)
            length = np.linalg.norm(np.asarray(updates[name]), axis=(-2, -1)) / before
            assert (length <= 1.01 * rate).all()
        params = moved


def test_an_expert_without_gradient_does_not_move_and_stays_finite() -> None:
    params, gradients = tree(), tree(1)
    gradients["experts"] = gradients["experts"].at[:, 3].set(0)
    init, update = HERO
    updates, _ = update(gradients, init(params), params, hyper())
    assert np.abs(np.asarray(updates["experts"][:, 3])).max() < 1e-6
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in updates.values())


def test_adam_agrees_with_optax_while_beta2_is_constant() -> None:
    params, ours = tree(), {}
    labels = dict.fromkeys(params, "adam")
    theirs = optax.adam(0.005, b1=0.9, b2=0.99, eps=1e-15)
    init, update = jitted(labels)
    mine, other = init(params), theirs.init(params)
    for seed in range(4):
        ours, mine = update(tree(seed + 1), mine, params, hyper())
        want, other = theirs.update(tree(seed + 1), other, params)
        for name in params:
            np.testing.assert_allclose(ours[name], want[name], rtol=2e-4, atol=1e-7)


def test_a_constant_gradient_gives_full_adam_steps_under_a_changing_beta2() -> None:
    params = {"gain": jnp.zeros(4)}
    init, update = jitted({"gain": "adam"})
    state = init(params)
    for beta2 in (0.9999, 0.95, 0.999):
        updates, state = update({"gain": jnp.full(4, 3.0)}, state, params, hyper(0.04, beta2))
        np.testing.assert_allclose(updates["gain"], -0.01, rtol=1e-5)
