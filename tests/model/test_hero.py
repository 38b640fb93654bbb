from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from marin.model import Batch, HeroConfig, abstract, make_mesh, optimizer_groups
from marin.model.sharding import path_of


def paths(tree: Any) -> dict[str, Any]:
    return {path_of(k): v for k, v in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.fixture(scope="module")
def result(one_device: Any, batch: Batch) -> Any:
    return one_device.loss_and_grad(one_device.params, one_device.bias, batch)


def test_loss_starts_near_uniform_and_everything_is_finite(
    result: Any, tiny: HeroConfig, batch: Batch
) -> None:
    (loss, aux), grads = result
    assert abs(float(aux.ce) - np.log(tiny.vocab)) < 0.5
    assert float(loss) == pytest.approx(float(aux.ce + aux.z_loss))
    assert int(aux.tokens) == int(batch.loss_mask.sum())
    np.testing.assert_allclose(aux.row_ce.sum() / aux.tokens, aux.ce, rtol=1e-6)
    for path, leaf in paths(grads).items():
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 0, path
    for leaf in jax.tree.leaves(aux):
        assert np.isfinite(leaf).all()


def test_every_valid_token_is_routed_and_padding_is_not(
    result: Any, tiny: HeroConfig, batch: Batch
) -> None:
    (_, aux), _ = result
    valid = int((batch.segment_ids > 0).sum())
    np.testing.assert_array_equal(aux.dispatch.assigned, [valid * tiny.top_k] * tiny.layers)
    np.testing.assert_array_equal(aux.dispatch.load.sum(1), aux.dispatch.assigned)
    np.testing.assert_allclose(aux.dispatch.weight, [valid * tiny.combine_sum] * tiny.layers, 1e-5)


def test_carrying_the_bias_balances_the_experts(one_device: Any, batch: Batch) -> None:
    bias = one_device.bias
    spread = []
    for _ in range(6):
        (_, aux), _ = one_device.loss_and_grad(one_device.params, bias, batch)
        spread.append(float((aux.dispatch.load.max(1) / aux.dispatch.load.mean(1)).mean()))
        bias = jax.tree.map(lambda _, new=aux.next_router_bias: new, bias)
    assert spread[0] > 1.15
    assert spread[-1] < 1.06


@pytest.mark.parametrize(
    "shape", [{"model": 2}, {"data": 2, "expert": 2}, {"replica": 2, "expert": 4}]
)
def test_loss_and_gradients_do_not_depend_on_the_mesh(
    shape: dict[str, int],
    result: Any,
    one_device: Any,
    compiled: Any,
    tiny: HeroConfig,
    batch: Batch,
) -> None:
    many = compiled(tiny, make_mesh(**shape), one_device.params)
    placed = jax.device_put(batch, many.rows)
    (loss, aux), grads = many.loss_and_grad(many.params, many.bias, placed)
    (expected_loss, expected_aux), expected = result
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(aux.next_router_bias, expected_aux.next_router_bias, atol=1e-6)
    np.testing.assert_array_equal(aux.dispatch.load, expected_aux.dispatch.load)
    ours, theirs = paths(grads), paths(expected)
    for path, leaf in ours.items():
        scale = float(jnp.abs(theirs[path]).max())
        np.testing.assert_allclose(leaf, theirs[path], rtol=1e-5, atol=1e-5 * scale, err_msg=path)


def test_one_document_does_not_see_another(one_device: Any, batch: Batch) -> None:
    tokens = np.array(batch.tokens)
    segments = np.asarray(batch.segment_ids)
    change = segments == 2
    tokens[change] = (tokens[change] + 7) % one_device.config.vocab
    changed = batch._replace(tokens=jnp.asarray(tokens))
    before = np.asarray(one_device.logits(one_device.params, one_device.bias, batch))
    after = np.asarray(one_device.logits(one_device.params, one_device.bias, changed))
    others = (segments > 0) & ~change
    np.testing.assert_array_equal(before[others], after[others])
    assert np.abs(before[change] - after[change]).max(-1).min() > 0
    # Gradients of the others' losses alone, as the second document's tokens change.
    masked = batch._replace(loss_mask=batch.loss_mask & jnp.asarray(others))
    _, first = one_device.loss_and_grad(one_device.params, one_device.bias, masked)
    masked = masked._replace(tokens=changed.tokens)
    _, second = one_device.loss_and_grad(one_device.params, one_device.bias, masked)
    # Rows of an expert stand in another order when others are routed elsewhere: sums round anew.
    for path, leaf in paths(first).items():
        scale = float(jnp.abs(leaf).max())
        np.testing.assert_allclose(leaf, paths(second)[path], atol=2e-6 * scale, err_msg=path)


def test_a_document_is_the_same_alone_and_packed(one_device: Any, batch: Batch) -> None:
    rows = np.array(batch.tokens)
    alone = np.zeros_like(rows)
    alone[0, :20], alone[1, :12] = rows[0, :20], rows[3, :12]
    segments = np.zeros_like(rows)
    segments[0, :20] = segments[1, :12] = 1
    alone_batch = Batch(*(jnp.asarray(a) for a in (alone, segments, batch.positions, segments > 0)))
    packed = one_device.logits(one_device.params, one_device.bias, batch)
    single = one_device.logits(one_device.params, one_device.bias, alone_batch)
    np.testing.assert_allclose(packed[0, :20], single[0, :20], atol=1e-5)
    np.testing.assert_allclose(packed[3, :12], single[1, :12], atol=1e-5)


def test_groups_follow_the_optimizers_definition(tiny: HeroConfig) -> None:
    params = nnx.state(abstract(tiny), nnx.Param)
    groups = paths(optimizer_groups(params))
    matrices = {
        *(f"layers/attention/{n}" for n in ("query", "key", "value", "output")),
        *(f"layers/moe/{s}/{n}" for s in ("experts", "shared") for n in ("gate", "up", "down")),
        *(f"layers/moe/latent_{n}" for n in ("down", "up")),
        *(f"{m}/{n}" for n in ("down", "up") for m in ("embedding_norm", "final_norm")),
        *(f"layers/{m}/{n}" for n in ("down", "up") for m in ("attention_norm", "moe_norm")),
    }
    assert {path for path, group in groups.items() if group == "muonh"} == matrices
    assert {path for path, group in groups.items() if group == "adamh"} == {"readout"}
    for path in ("embedding", "layers/moe/router/weight", "layers/attention/gate"):
        assert groups[path] == "adam"
    assert len(groups) == len(paths(params))
