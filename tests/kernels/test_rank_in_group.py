"""`rank_in_group`: positions and sizes for any assignment, kernel and reference alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marin.kernels.rank_in_group import rank_in_group

CASES = {
    "random": lambda rng: rng.integers(-1, 8, 300),
    "one group": lambda rng: np.full(300, 6),
    "no group": lambda rng: np.full(300, -1),
    "beyond": lambda rng: rng.integers(5, 12, 300),
}


@pytest.mark.parametrize("backend", ["reference", "interpret"])
def test_ranks_are_positions_within_the_group(backend) -> None:
    run = jax.jit(lambda g: rank_in_group(g, 7, backend))
    for make in CASES.values():
        groups = make(np.random.default_rng(0)).astype(np.int32)
        ranks, counts = run(jnp.asarray(groups))
        seen = [0] * 7
        for i, group in enumerate(groups):
            if 0 <= group < 7:
                assert ranks[i] == seen[group]
                seen[group] += 1
            else:
                assert ranks[i] == -1
        np.testing.assert_array_equal(counts, seen)


def test_kernel_lowers_for_cuda_and_never_makes_a_one_hot_array(bench) -> None:
    size, groups = 524_288, 384
    program = bench.lowered_for_cuda(
        lambda g: rank_in_group(g, groups, "pallas_gpu"), jax.ShapeDtypeStruct((size,), jnp.int32)
    )
    assert "rank_in_group" in program
    assert f"{size}x{groups}" not in program
    assert "stablehlo.sort" not in program
