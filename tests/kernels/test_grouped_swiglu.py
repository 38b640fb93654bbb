"""`grouped_swiglu`: kernel, reference and the formula agree for any sizes of groups."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.kernels.grouped_swiglu import block_layout, grouped_swiglu
from marin.kernels.permute_rows import invert_slots, permute_rows

EXPERTS, WIDTH, INNER, BLOCK = 5, 64, 192, 16
GROUPS = {
    "odd sizes": [3, 0, 17, 16, 1],
    "all to one": [0, 0, 0, 37, 0],
    "empty": [0, 0, 0, 0, 0],
}
TOKENS = 37


def problem(sizes: list[int], dtype):
    rng = np.random.default_rng(0)
    ids = np.full(TOKENS, -1)
    ids[: sum(sizes)] = np.repeat(np.arange(EXPERTS), sizes)
    rng.shuffle(ids)
    shapes = ((EXPERTS, WIDTH, INNER), (EXPERTS, WIDTH, INNER), (EXPERTS, INNER, WIDTH))
    weights = tuple(jnp.asarray(rng.normal(size=s) / 8, jnp.float32) for s in shapes)
    return (
        jnp.asarray(ids, jnp.int32),
        jnp.asarray(rng.normal(size=(TOKENS, WIDTH)), dtype),
        weights,
    )


def run(ids, x, weights, backend):
    """Per token the expert's output, and the gradients of a loss without symmetry."""

    def outputs(x, weights):
        layout = block_layout(ids, EXPERTS, rows=TOKENS, block=BLOCK)
        slots = layout.slots[:, None]
        inverse = invert_slots(slots, layout.expert_of_block.shape[0] * BLOCK)
        rows = permute_rows(x, inverse, slots, "reference")
        y = grouped_swiglu(rows, layout.expert_of_block, layout.blocks_used, *weights, backend)
        return y.at[layout.slots].get(mode="fill", fill_value=0, wrap_negative_indices=False)

    y, back = jax.vjp(outputs, x, weights)
    probe = jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape).astype(y.dtype)
    return y, back(probe)


def formula(ids, x, weights):
    def outputs(x, weights):
        gate, up, down = (p[jnp.maximum(ids, 0)] for p in weights)
        h = jax.nn.silu(jnp.einsum("tw,twm->tm", x, gate)) * jnp.einsum("tw,twm->tm", x, up)
        return jnp.where(ids[:, None] >= 0, jnp.einsum("tm,tmw->tw", h, down), 0)

    y, back = jax.vjp(outputs, x, weights)
    return y, back(jnp.cos(jnp.arange(y.size, dtype=jnp.float32)).reshape(y.shape))


@pytest.mark.parametrize("backend", ["reference", "interpret"])
def test_value_and_gradient_are_those_of_the_formula_for_any_group_sizes(bench, backend) -> None:
    jitted = jax.jit(run, static_argnums=3)
    for sizes in GROUPS.values():
        ids, x, weights = problem(sizes, jnp.float32)
        expected = jax.jit(formula)(ids, x, weights)
        bench.assert_close(jitted(ids, x, weights, backend), expected, 2e-5)


def test_kernel_equals_reference_in_bfloat16_with_float32_weight_gradients(bench) -> None:
    jitted = jax.jit(run, static_argnums=3)
    ids, x, weights = problem(GROUPS["odd sizes"], jnp.bfloat16)
    actual, expected = (jitted(ids, x, weights, b) for b in ("interpret", "reference"))
    assert actual[1][1][0].dtype == jnp.float32
    bench.assert_close(actual, expected, 1e-2)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_kernels_lower_for_cuda_at_the_shapes_of_the_run(bench, dtype) -> None:
    experts, width, blocks = 6, 3072, 4102

    def loss(rows, owner, used, weights):
        return grouped_swiglu(rows, owner, used, *weights, "pallas_gpu").sum()

    def shape(*dims, dtype=dtype):
        return jax.ShapeDtypeStruct(dims, dtype)

    program = bench.lowered_for_cuda(
        jax.value_and_grad(loss, argnums=(0, 3)),
        shape(blocks * 128, width),
        shape(blocks, dtype=jnp.int32),
        shape(dtype=jnp.int32),
        (shape(experts, width, width, dtype=jnp.float32),) * 3,
    )
    for kernel in ("gate_up", "project", "activation", "rows_gradient", "weight_gradient"):
        assert f"grouped_swiglu_{kernel}" in program
