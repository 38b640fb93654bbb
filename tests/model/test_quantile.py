import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding

from marin.model import make_mesh, row_spec
from marin.model.quantile import largest, quantile_rank
from marin.model.router import next_bias

LARGEST = jax.jit(largest)
ROWS, COLUMNS = 24, 3


def test_largest_is_an_element_of_the_exact_rank_for_any_float() -> None:
    special = [0.0, -0.0, 1e-45, -1e-45, 3.4e38, -3.4e38, np.inf, -np.inf, 1.0, -1.0]

    @settings(deadline=None, max_examples=40)
    @given(
        st.lists(
            st.one_of(st.floats(width=32, allow_nan=False), st.sampled_from(special)),
            min_size=ROWS * COLUMNS,
            max_size=ROWS * COLUMNS,
        ),
        st.integers(1, ROWS),
        st.integers(0, 2**32 - 1),
    )
    def check(numbers: list[float], rank: int, seed: int) -> None:
        values = np.array(numbers, np.float32).reshape(ROWS, COLUMNS)
        valid = np.random.default_rng(seed).random(ROWS) < 0.7
        valid[: max(0, rank - int(valid.sum()))] = True
        rank = min(rank, int(valid.sum()))
        expected = np.sort(values[valid], axis=0)[::-1][rank - 1]
        np.testing.assert_array_equal(LARGEST(values, valid, jnp.int32(rank)), expected)

    check()


def test_quantile_is_the_same_to_the_bit_on_any_layout_over_devices() -> None:
    rng = np.random.default_rng(1)
    values = rng.standard_normal((800, 12)).astype(np.float32)
    valid = rng.random(800) < 0.8
    rank = jnp.int32(77)
    expected = np.sort(values[valid], axis=0)[::-1][76]
    for mesh in (make_mesh(), make_mesh(expert=4), make_mesh(replica=2, data=2, expert=2)):
        order = rng.permutation(800)
        placed = jax.device_put(values[order], NamedSharding(mesh, row_spec()))
        mask = jax.device_put(valid[order], NamedSharding(mesh, row_spec(1)))
        np.testing.assert_array_equal(LARGEST(placed, mask, rank), expected)


def test_an_outlier_of_one_expert_moves_no_other_expert() -> None:
    values = np.random.default_rng(2).standard_normal((200, 3)).astype(np.float32)
    valid = np.ones(200, bool)
    before = np.asarray(LARGEST(values, valid, jnp.int32(9)))
    values[3, 0] = 1e38
    values[4, 0] = -1e38
    after = np.asarray(LARGEST(values, valid, jnp.int32(9)))
    np.testing.assert_array_equal(before[1:], after[1:])


def test_rank_is_exact_where_the_product_would_overflow() -> None:
    for count in (0, 1, 47, 48, 383, 384, 385, 2**28 + 12345, 2**31 - 400):
        rank = quantile_rank(jnp.int32(count), 8, 384)
        assert int(rank) == count * 8 // 384 + 1


def test_bias_ignores_padding_and_stays_where_no_token_is_valid() -> None:
    rng = np.random.default_rng(3)
    margins = rng.standard_normal((2, 50, 6)).astype(np.float32)
    valid = rng.random((2, 50)) < 0.5
    bias = jnp.arange(6.0)
    next_of = jax.jit(lambda margins, valid: next_bias(margins, valid, bias, 2))
    got = np.asarray(next_of(margins, valid))
    margins[~valid] = 1e9
    np.testing.assert_array_equal(got, next_of(margins, valid))
    kept = margins[valid]
    beta = np.sort(kept, axis=0)[::-1][len(kept) * 2 // 6]
    np.testing.assert_allclose(got, beta.mean() - beta, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(next_of(margins, valid & False), bias)
