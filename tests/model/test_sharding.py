"""The embedding's gradient is the sum over all positions, in any type and on any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.model.sharding import embed, make_mesh, row_spec

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
