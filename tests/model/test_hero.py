import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from support.hero import (
    Compiled,
    assert_gathers_no_activations,
    assert_same_gradients,
    by_path,
    compile_model,
)

from marin.compat import QUICK_COMPILE
from marin.model import Batch, HeroConfig, abstract, make_mesh, optimizer_groups
from marin.model.routing import choices


def test_loss_starts_near_uniform_and_everything_is_finite(
    result: Any, tiny: HeroConfig, batch: Batch
) -> None:
    (loss, aux), grads = result
    assert abs(float(aux.ce) - np.log(tiny.vocab)) < 0.5
    assert float(loss) == pytest.approx(float(aux.ce + aux.z_loss))
    assert int(aux.tokens) == int(batch.loss_mask.sum())
    np.testing.assert_allclose(aux.row_ce.sum() / aux.tokens, aux.ce, rtol=1e-6)
    for path, leaf in by_path(grads).items():
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


def test_the_choices_of_every_layer_are_those_that_the_loss_dispatches(
    one_device: Compiled, result: Any, batch: Batch
) -> None:
    run = jax.jit(
        lambda params, bias, batch: choices(
            one_device.merge(params, bias), batch, mesh=one_device.mesh
        ),
        compiler_options=QUICK_COMPILE,
    )
    chosen = run(one_device.params, one_device.bias, batch)
    valid = np.asarray(batch.segment_ids) > 0
    (_, aux), _ = result
    for layer, load in enumerate(aux.dispatch.load):
        counts = np.bincount(np.asarray(chosen.experts[layer])[valid].ravel(), minlength=load.size)
        np.testing.assert_array_equal(counts, load)


def test_carrying_the_bias_balances_the_experts(one_device: Compiled, batch: Batch) -> None:
    bias = one_device.bias
    spread = []
    for _ in range(6):
        (_, aux), _ = one_device.loss_and_grad(one_device.params, bias, batch)
        spread.append(float((aux.dispatch.load.max(1) / aux.dispatch.load.mean(1)).mean()))
        bias = jax.tree.map(
            lambda old, new=aux.next_router_bias: jax.device_put(new, old.sharding), bias
        )
    assert spread[0] > 1.15
    assert spread[-1] < 1.06


# Every mesh with another transport and another policy of what is kept for the backward pass: none
# of them may change the answer.
@pytest.mark.parametrize(
    ("shape", "transport", "remat"),
    [
        ({"model": 2}, "local", "block"),
        ({"data": 2, "expert": 2}, "ragged", "save_moe"),
        ({"replica": 2, "expert": 4}, "ring", "none"),
    ],
    ids=["2 devices", "4 devices", "8 devices"],
)
def test_loss_and_gradients_depend_on_no_mesh_transport_or_rematerialization(
    shape: dict[str, int], transport: Any, remat: Any, result: Any, tiny: HeroConfig, batch: Batch
) -> None:
    config = dataclasses.replace(tiny, transport=transport, remat=remat)
    many = compile_model(config, make_mesh(**shape))
    inputs = (many.params, many.bias, many.place(batch))
    program = many.loss_and_grad.lower(*inputs).compile()
    (loss, aux), grads = program(*inputs)
    (expected_loss, expected_aux), expected = result
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(aux.next_router_bias, expected_aux.next_router_bias, atol=1e-6)
    np.testing.assert_array_equal(aux.dispatch.load, expected_aux.dispatch.load)
    assert_same_gradients(by_path(grads), by_path(expected), 1e-5)
    if transport != "ragged":  # whose emulation gathers the rows of a group
        assert_gathers_no_activations(program.as_text(), batch, config)


def test_bfloat16_follows_float32_in_loss_and_gradients(
    result: Any, tiny: HeroConfig, batch: Batch
) -> None:
    config = dataclasses.replace(tiny, dtype="bfloat16", remat="save_moe")
    rounded = compile_model(config, make_mesh())
    (loss, _), grads = rounded.loss_and_grad(rounded.params, rounded.bias, batch)
    (expected_loss, _), expected = result
    assert float(loss) == pytest.approx(float(expected_loss), rel=2e-3)
    ours, theirs = by_path(grads), by_path(expected)
    for path, leaf in theirs.items():
        assert ours[path].dtype == np.float32, path
        a, b = np.ravel(ours[path]), np.ravel(leaf)
        assert a @ b > 0.98 * np.linalg.norm(a) * np.linalg.norm(b), path


def test_one_document_does_not_see_another(one_device: Compiled, batch: Batch) -> None:
    tokens = np.array(batch.tokens)
    segments = np.asarray(batch.segment_ids)
    change = segments == 2
    tokens[change] = (tokens[change] + 7) % one_device.config.vocab
    changed = one_device.place(batch._replace(tokens=tokens))
    before = np.asarray(one_device.logits(one_device.params, one_device.bias, batch))
    after = np.asarray(one_device.logits(one_device.params, one_device.bias, changed))
    others = (segments > 0) & ~change
    np.testing.assert_array_equal(before[others], after[others])
    assert np.abs(before[change] - after[change]).max(-1).min() > 0
    # Gradients of the others' losses alone, as the second document's tokens change.
    masked = one_device.place(batch._replace(loss_mask=np.asarray(batch.loss_mask) & others))
    _, first = one_device.loss_and_grad(one_device.params, one_device.bias, masked)
    masked = masked._replace(tokens=changed.tokens)
    _, second = one_device.loss_and_grad(one_device.params, one_device.bias, masked)
    # Rows of an expert stand in another order when others are routed elsewhere: sums round anew.
    assert_same_gradients(by_path(second), by_path(first), 2e-6)


def test_a_document_is_the_same_alone_and_packed(one_device: Compiled, batch: Batch) -> None:
    rows = np.array(batch.tokens)
    alone = np.zeros_like(rows)
    alone[0, :20], alone[1, :12] = rows[0, :20], rows[3, :12]
    segments = np.zeros_like(rows)
    segments[0, :20] = segments[1, :12] = 1
    alone_batch = one_device.place(Batch(alone, segments, batch.positions, segments > 0))
    whole = one_device.logits(one_device.params, one_device.bias, batch)
    single = one_device.logits(one_device.params, one_device.bias, alone_batch)
    np.testing.assert_allclose(whole[0, :20], single[0, :20], atol=1e-5)
    np.testing.assert_allclose(whole[3, :12], single[1, :12], atol=1e-5)


def test_groups_follow_the_optimizers_definition(tiny: HeroConfig) -> None:
    params = nnx.state(abstract(tiny), nnx.Param)
    groups = by_path(optimizer_groups(params))
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
    assert len(groups) == len(by_path(params))
