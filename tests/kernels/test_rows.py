"""`permute_rows` and `combine_rows`: kernel and reference agree, and each is the
other's transpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.kernels.combine_rows import combine_rows
from marin.kernels.permute_rows import invert_slots, permute_rows


def problem(tokens: int, k: int, rows: int, width: int, dtype, seed: int = 0):
    """A random injective map of some assignments to some of the rows."""
    rng = np.random.default_rng(seed)
    slots = np.full(tokens * k, -1, np.int32)
    filled = min(rows, tokens * k) * 3 // 4
    slots[rng.permutation(tokens * k)[:filled]] = rng.permutation(rows)[:filled]
    slots = jnp.asarray(slots.reshape(tokens, k))
    return (
        jnp.asarray(rng.normal(size=(tokens, width)), dtype),
        jnp.asarray(rng.normal(size=(rows, width)), dtype),
        slots,
        jnp.asarray(rng.random((tokens, k)), jnp.float32),
        invert_slots(slots, rows),
    )


@pytest.mark.parametrize(
    ("tokens", "k", "rows", "width", "dtype", "tolerance"),
    [
        (13, 3, 29, 64, jnp.float32, 1e-6),
        (8, 1, 8, 192, jnp.bfloat16, 1e-2),
        (5, 2, 3, 1024, jnp.float32, 1e-6),
    ],
)
def test_kernels_equal_their_references_in_value_and_gradient(
    bench, tokens: int, k: int, rows: int, width: int, dtype, tolerance: float
) -> None:
    x, buffer, slots, weights, assignments = problem(tokens, k, rows, width, dtype)

    def both(backend):
        y, permute_back = jax.vjp(lambda a: permute_rows(a, assignments, slots, backend), x)
        z, combine_back = jax.vjp(
            lambda b, w: combine_rows(b, slots, w, assignments, x.dtype, backend), buffer, weights
        )
        return y, permute_back(buffer), z, combine_back(x)

    bench.assert_close(
        jax.jit(lambda: both("interpret"))(), jax.jit(lambda: both("reference"))(), tolerance
    )


def test_values_are_those_of_a_loop() -> None:
    x, buffer, slots, weights, assignments = problem(7, 2, 10, 64, jnp.float32)
    permuted = np.asarray(permute_rows(x, assignments, slots))
    combined = np.asarray(combine_rows(buffer, slots, weights, assignments, jnp.float32))
    expected_rows, expected = np.zeros((10, 64)), np.zeros((7, 64))
    for t, j in np.ndindex(7, 2):
        slot = int(slots[t, j])
        if slot >= 0:
            expected_rows[slot] = x[t]
            expected[t] += np.float64(weights[t, j]) * np.asarray(buffer[slot], np.float64)
    np.testing.assert_array_equal(permuted, expected_rows.astype(np.float32))
    np.testing.assert_allclose(combined, expected, atol=1e-5)


def test_permute_and_combine_are_each_others_transpose() -> None:
    x, buffer, slots, _, assignments = problem(7, 2, 10, 64, jnp.float32)
    ones = jnp.ones(slots.shape, jnp.float32)
    there = jnp.vdot(permute_rows(x, assignments, slots), buffer)
    back = jnp.vdot(x, combine_rows(buffer, slots, ones, assignments, jnp.float32))
    np.testing.assert_allclose(there, back, rtol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_lower_for_cuda_with_64_bit_offsets_for_large_buffers(bench, dtype) -> None:
    tokens, k, rows, width = 1 << 20, 8, 1 << 23, 3072

    def shape(*dims, dtype=dtype):
        return jax.ShapeDtypeStruct(dims, dtype)

    def layer(x, slots, weights, assignments):
        buffer = permute_rows(x, assignments, slots, "pallas_gpu")
        return combine_rows(buffer, slots, weights, assignments, dtype, "pallas_gpu").sum()

    program = bench.lowered_for_cuda(
        jax.grad(layer, argnums=(0, 2)),
        shape(tokens, width),
        shape(tokens, k, dtype=jnp.int32),
        shape(tokens, k, dtype=jnp.float32),
        shape(rows, dtype=jnp.int32),
    )
    for kernel in ("permute_rows", "combine_rows", "combine_rows_backward"):
        assert kernel in program
