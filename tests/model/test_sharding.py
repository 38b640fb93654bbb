"""Gradients of weights are float32 sums over all positions, in any type and on any mesh."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.model.hero import _cross_entropy_by_device
from marin.model.product import product
from marin.model.sharding import embed, gather, make_mesh, row_spec

VOCAB, HIDDEN, ROWS, LENGTH = 16, 32, 8, 1024


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("devices", [1, 8])
def test_the_gradient_of_a_frequent_token_is_a_float32_sum(dtype: str, devices: int) -> None:
    draw = np.random.default_rng(0)
    tokens = draw.integers(VOCAB, size=(ROWS, LENGTH))
    tokens[draw.random(tokens.shape) < 0.5] = 3
    table = jnp.asarray(draw.normal(size=(VOCAB, HIDDEN)), jnp.float32)
    cotangent = jnp.asarray(1 + draw.normal(size=(ROWS, LENGTH, HIDDEN)), dtype)
    mesh = make_mesh(data=devices)
    along = jax.NamedSharding(mesh, row_spec(2))

    @jax.jit
    def rows_and_gradient(table: jax.Array, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows, back = jax.vjp(lambda t: embed(t, tokens, mesh, dtype), table)
        return rows, back(cotangent)[0]

    rows, gradient = rows_and_gradient(table, jax.device_put(tokens, along))
    np.testing.assert_array_equal(rows, table.astype(dtype)[tokens])
    expected = np.zeros((VOCAB, HIDDEN))
    np.add.at(expected, tokens, np.asarray(cotangent, np.float64))
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("devices", [1, 8])
def test_the_gradient_of_a_matrix_is_a_float32_sum(dtype: str, devices: int) -> None:
    draw = np.random.default_rng(1)
    x = jnp.asarray(draw.normal(size=(ROWS, LENGTH, HIDDEN)), dtype)
    cotangent = jnp.asarray(1 + draw.normal(size=(ROWS, LENGTH, 16)), dtype)
    matrix = jnp.asarray(draw.normal(size=(HIDDEN, 16)), jnp.float32)
    mesh = make_mesh(data=devices)
    x, cotangent = jax.device_put((x, cotangent), jax.NamedSharding(mesh, row_spec(3)))

    @jax.jit
    def output_and_gradient(matrix: jax.Array) -> tuple[jax.Array, jax.Array]:
        def output(matrix: jax.Array) -> jax.Array:
            weights = gather({"attention/query": matrix}, mesh, dtype)
            return product("bld,dk->blk", x, weights["attention/query"])

        out, back = jax.vjp(output, matrix)
        return out, back(cotangent)[0]

    out, gradient = output_and_gradient(matrix)
    np.testing.assert_array_equal(out, x @ matrix.astype(dtype))
    expected = np.einsum("bld,blk->dk", *(np.asarray(a, np.float64) for a in (x, cotangent)))
    assert gradient.dtype == jnp.float32
    np.testing.assert_allclose(gradient, expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("devices", [1, 8])
def test_the_gradient_of_the_readout_is_a_float32_sum(devices: int) -> None:
    draw = np.random.default_rng(2)
    hidden = jnp.asarray(draw.normal(size=(ROWS * LENGTH, HIDDEN)), jnp.bfloat16)
    readout = jnp.asarray(draw.normal(size=(VOCAB, HIDDEN)), jnp.float32)
    targets = jnp.asarray(draw.integers(VOCAB, size=len(hidden)))

    def gradient(block: int, devices: int) -> jax.Array:
        mesh = make_mesh(data=devices)

        def loss(readout: jax.Array) -> jax.Array:
            losses, _ = _cross_entropy_by_device(hidden, readout, targets, block, mesh)
            return jnp.sum(losses)

        return jax.jit(jax.grad(loss))(readout)

    def plain(readout: jax.Array) -> jax.Array:
        # As the fused version rounds: weights and slopes to bfloat16, sums in float32.
        logits = hidden.astype(jnp.float32) @ readout.astype(jnp.bfloat16).astype(jnp.float32).T
        slopes = jax.nn.softmax(logits) - jax.nn.one_hot(targets, VOCAB)
        return slopes.astype(jnp.bfloat16).astype(jnp.float32).T @ hidden.astype(jnp.float32)

    found, expected = gradient(VOCAB, devices), plain(readout)
    assert found.dtype == jnp.float32
    # Slopes at the edge of two bfloat16 numbers may fall to either side.
    np.testing.assert_allclose(found, expected, atol=3e-4 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("indices", ["bld,dk->blk", "bld,sdm->blsm", "blsm,smd->bld"])
def test_products_and_their_gradients_are_those_of_einsum(indices: str) -> None:
    sizes = dict(zip("blsdkm", (2, 3, 4, 5, 6, 7), strict=True))
    draw = np.random.default_rng(3)
    terms = indices.replace("->", ",").split(",")
    x, weight, cotangent = (
        jnp.asarray(draw.normal(size=[sizes[index] for index in term]), jnp.float32)
        for term in terms
    )

    def gradients(function: Callable[..., jax.Array]) -> tuple[jax.Array, jax.Array]:
        _, back = jax.vjp(lambda x, weight: function(indices, x, weight), x, weight)
        return back(cotangent)

    for found, expected in zip(gradients(product), gradients(jnp.einsum), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
