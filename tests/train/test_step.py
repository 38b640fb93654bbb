"""One step: accumulation, and the state that it carries."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from support.hero import assert_gathers_no_activations
from support.training import tiny_model

from marin.model import Batch, make_mesh, row_spec
from marin.train.curriculum import Segment, StepPlan
from marin.train.rates import compute_scaled_rates
from marin.train.state import named_arrays, take_apart
from marin.train.step import batch_gradients, compile_step, constants_of


def ragged_batch(valid: list[int], seq_len: int) -> Batch:
    """Rows of one document of `valid` tokens each, then padding."""
    draw = np.random.default_rng(0)
    segments = (np.arange(seq_len) < np.array(valid)[:, None]).astype(np.int32)
    mask = np.zeros(segments.shape, bool)
    mask[:, :-1] = segments[:, 1:] > 0
    tokens = draw.integers(1, 64, segments.shape).astype(np.int32) * segments
    positions = np.broadcast_to(np.arange(seq_len, dtype=np.int32), segments.shape)
    return Batch(*(jnp.asarray(x) for x in (tokens, segments, positions, mask)))


def test_microbatches_of_few_and_many_tokens_give_the_gradient_of_the_joint_batch() -> None:
    config = dataclasses.replace(tiny_model(), sequence_balance=0.1)
    trainee = take_apart(config, make_mesh(devices=jax.devices()[:1]))
    state = trainee.initial(0)
    batch = ragged_batch([4, 301, 4, 97], 304)

    def gradients(parts: int) -> tuple[jax.Array, dict[str, jax.Array], Any]:
        compute = jax.jit(lambda s, b: batch_gradients(trainee, s, b, jnp.float32(1), parts))
        loss, tree, aux = compute(state, batch)
        return loss, named_arrays(tree), aux

    loss, joint, aux = gradients(1)
    split_loss, split, split_aux = gradients(4)
    assert float(split_loss) == pytest.approx(float(loss), rel=1e-6)
    assert int(split_aux.tokens) == int(aux.tokens) == 3 + 300 + 3 + 96
    assert float(split_aux.balance_loss) == pytest.approx(float(aux.balance_loss), rel=1e-6)
    assert float(split_aux.ce) == pytest.approx(float(aux.ce), rel=1e-6)
    # Not a mean of the microbatches' quantiles: one over all tokens, whichever microbatch has them.
    np.testing.assert_allclose(split_aux.next_router_bias, aux.next_router_bias, atol=1e-6)
    for name, gradient in joint.items():
        scale = float(jnp.abs(gradient).max())
        np.testing.assert_allclose(split[name], gradient, atol=1e-5 * scale, err_msg=name)


@pytest.mark.slow
def test_microbatches_gather_neither_scores_nor_rows_of_other_devices() -> None:
    config = dataclasses.replace(tiny_model(), dtype="bfloat16", transport="pooled_wave")
    trainee = take_apart(config, make_mesh(replica=2, expert=4))
    batch = ragged_batch([36] * 16, 36)  # a length that is no dimension of the model
    placed = jax.device_put(batch, NamedSharding(trainee.mesh, row_spec()))
    compute = jax.jit(lambda s, b: batch_gradients(trainee, s, b, jnp.float32(1), 2))
    program = compute.lower(trainee.initial(0), placed).compile()
    assert_gathers_no_activations(program.as_text(), batch, config)


def test_steps_in_bfloat16_follow_those_in_float32_and_keep_float32_weights() -> None:
    rows, length = 4, 128
    batch = ragged_batch([128, 101, 128, 77], length)
    rates = compute_scaled_rates(10_000_000, tiny_model().hidden, rows * length)
    plan = StepPlan(0, 0, 0, Segment(10, rows, length, "main"), rates, qk_scale=1.0)

    def train(dtype: Any) -> tuple[list[float], dict[str, jax.Array], dict[str, jax.Array]]:
        config = dataclasses.replace(tiny_model(), dtype=dtype)
        trainee = take_apart(config, make_mesh(devices=jax.devices()[:1]))
        step = compile_step(trainee, rows, length, cells=1)
        state = trainee.initial(0)
        before = {name: np.asarray(leaf) for name, leaf in named_arrays(state).items()}
        losses = []
        for _ in range(4):
            state, metrics = step(state, batch, np.zeros(rows, np.int32), constants_of(plan))
            losses.append(float(metrics.ce))
        return losses, before, named_arrays(state)

    losses, before, expected = train("float32")
    rounded_losses, _, rounded = train("bfloat16")
    assert losses[-1] < losses[0] - 0.05
    np.testing.assert_allclose(rounded_losses, losses, rtol=5e-3)
    for name, leaf in expected.items():
        assert rounded[name].dtype == leaf.dtype, name
        if name.startswith("parameters."):
            assert leaf.dtype == np.float32, name
            moved, moved_rounded = (np.ravel(x - before[name]) for x in (leaf, rounded[name]))
            size = np.linalg.norm(moved) * np.linalg.norm(moved_rounded)
            assert moved @ moved_rounded >= 0.9 * size, name


def test_every_moment_lies_as_its_weight() -> None:
    trainee = take_apart(tiny_model(), make_mesh(data=2, expert=4))
    layout = named_arrays(trainee.layout)
    weights = {n.removeprefix("parameters."): x for n, x in layout.items() if "parameters." in n}
    checked = 0
    for name, leaf in layout.items():
        for weight_name, weight in weights.items():
            if name.startswith("optimizer.") and name.endswith(f".{weight_name}"):
                assert leaf.sharding == weight.sharding, name
                checked += 1
    assert checked >= len(weights)
    initial = named_arrays(trainee.initial(0))
    assert {n: x.sharding for n, x in initial.items()} == {n: x.sharding for n, x in layout.items()}
