"""The optimizer's groups against slow, obvious references."""

import re
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


def slow_orthogonalized(matrix: np.ndarray) -> np.ndarray:
    """Five Newton-Schulz steps in float64, each singular value by itself: `3.4445 s - 4.775 s^3 +
    2.0315 s^5`, from a matrix of Frobenius norm 1."""
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values, axis=-1, keepdims=True)
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    return (left * values[..., None, :]) @ right


@pytest.mark.parametrize("shape", [(2, 3, 10, 30), (2, 3, 30, 10), (4, 16, 16)])
def test_newton_schulz_equals_its_polynomial_of_the_singular_values(shape: tuple[int, ...]) -> None:
    stack = np.random.default_rng(4).normal(size=shape)
    spec = P(*(None,) * len(shape))
    [done] = orthogonalize_all([jnp.asarray(stack, jnp.float32)], [spec], one_device())
    np.testing.assert_allclose(done, slow_orthogonalized(stack), atol=1e-4)


@pytest.mark.parametrize("layers", [2, 3])
def test_experts_stay_among_the_devices_of_their_shard(layers: int) -> None:
    mesh, spec = make_mesh(data=2, expert=4), P(None, "expert", "data", None)
    stack = np.random.default_rng(5).normal(size=(layers, 4, 16, 32))
    laid_out = jax.device_put(jnp.asarray(stack, jnp.float32), NamedSharding(mesh, spec))
    spread = jax.jit(lambda a: orthogonalize_all([a], [spec], mesh)[0]).lower(laid_out).compile()
    np.testing.assert_allclose(spread(laid_out), slow_orthogonalized(stack), atol=1e-4)
    moves = re.findall(r" (all-[a-z-]+|collective-permute)\(", spread.as_text())
    assert moves == ["all-to-all"] * 2  # over `data`: to whole matrices and back


class Twin:
    """The optimizer in float64 as the published recipe states it, one array of one group."""

    def __init__(self, group: str, weight: np.ndarray) -> None:
        self.group, self.weight = group, weight.astype(np.float64)
        self.momentum, self.first, self.second = (np.zeros_like(self.weight) for _ in range(3))
        self.decays: list[float] = []

    def step(self, gradient: np.ndarray, rates: tuple[float, float], beta2: float) -> None:
        """One update at (MuonH's rate, Adam's rate)."""
        u = self._nesterov(gradient) if self.group == "muonh" else self._adam(gradient, beta2)
        if self.group == "adam":
            self.weight = self.weight - rates[1] * u
            return
        norm = np.linalg.norm(self.weight, axis=(-2, -1), keepdims=True)
        length = rates[0] * norm / np.linalg.norm(u, axis=(-2, -1), keepdims=True)
        moved = self.weight - length * u
        self.weight = moved * norm / np.linalg.norm(moved, axis=(-2, -1), keepdims=True)

    def _nesterov(self, gradient: np.ndarray) -> np.ndarray:
        self.momentum = 0.95 * self.momentum + gradient
        return slow_orthogonalized(gradient + 0.95 * self.momentum)

    def _adam(self, gradient: np.ndarray, beta2: float) -> np.ndarray:
        """Moments over what their weights sum to; that is `1 - beta^n` if beta is constant."""
        self.decays.append(beta2)
        self.first = 0.9 * self.first + 0.1 * gradient
        self.second = beta2 * self.second + (1 - beta2) * gradient**2
        first = self.first / (1 - 0.9 ** len(self.decays))
        return first / (np.sqrt(self.second / (1 - np.prod(self.decays))) + EPS)


EPS = 0.1  # large enough to be seen


@pytest.mark.parametrize("name", list(LABELS))
def test_updates_are_those_of_the_published_recipe(name: str) -> None:
    params = tree()
    twin = Twin(LABELS[name], np.asarray(params[name]))
    init, update = HERO
    state = init(params)
    for number, beta2 in enumerate((0.99, 0.95, 0.97)):
        rates = (0.05 / (number + 1), 0.004 * (number + 1))
        gradients = tree(10 + number)
        given = Hyper(*(jnp.float32(value) for value in (*rates, beta2, EPS)))
        updates, state = update(gradients, state, params, given)
        before = twin.weight
        twin.step(np.asarray(gradients[name], np.float64), rates, beta2)
        want = twin.weight - before
        np.testing.assert_allclose(updates[name], want, atol=2e-4 * np.abs(want).max())
        params = optax.apply_updates(params, updates)


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
