"""The exact upper quantile of each column of a matrix whose rows are spread over devices.

A radix select on the bits of float32: numbers are mapped to unsigned integers of the same order,
and the answer is found digit by digit from the top, each digit by counting, over the whole batch,
how many numbers are at least each of its possible values. Counts are integers, so the answer is
one of the numbers, the same to the last bit for any layout over devices: the error is zero. Columns
do not interact, so an outlier of one leaves the others untouched.

Price: `32 / DIGIT_BITS` passes over the matrix and as many sums of `(2^DIGIT_BITS - 1) * columns`
integers over devices.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32

DIGIT_BITS = 4


def _ordered(x: Float[Array, "..."]) -> UInt32[Array, "..."]:
    """Unsigned integers in the order of the float32 numbers; 0 stands below all of them."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    sign = jnp.uint32(1 << 31)
    return jnp.where(bits >= sign, ~bits, bits | sign)


def _number(key: UInt32[Array, "..."]) -> Float[Array, "..."]:
    sign = jnp.uint32(1 << 31)
    bits = jnp.where(key >= sign, key ^ sign, ~key)
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def quantile_rank(count: Int[Array, ""], top_k: int, experts: int) -> Int[Array, ""]:
    """`floor(count * top_k / experts) + 1` in int32, without the product that would overflow."""
    return count // experts * top_k + count % experts * top_k // experts + 1


def largest(
    values: Float[Array, "rows columns"], valid: Bool[Array, "rows"], rank: Int[Array, ""]
) -> Float[Array, "columns"]:
    """The `rank`-th largest (from 1) of the valid values of each column, exactly.

    At most `rank - 1` valid values of a column are greater. A rank over the number of valid rows
    gives NaN. Not differentiable; NaN among the values is not allowed.
    """
    keys = jnp.where(valid[:, None], _ordered(values), jnp.uint32(0))
    digits = jnp.arange(1, 1 << DIGIT_BITS, dtype=jnp.uint32)

    def digit(step: Int[Array, ""], found: UInt32[Array, "columns"]) -> UInt32[Array, "columns"]:
        shift = jnp.uint32(32 - DIGIT_BITS) - step.astype(jnp.uint32) * DIGIT_BITS
        trials = found | (digits << shift)[:, None]
        counts = jnp.sum(keys[:, None, :] >= trials, axis=0, dtype=jnp.int32)
        reached = jnp.sum(counts >= rank, axis=0, dtype=jnp.uint32)
        longer: Array = found | (reached << shift)
        return longer

    start = jnp.zeros(values.shape[1], jnp.uint32)
    found: Array = jax.lax.fori_loop(0, 32 // DIGIT_BITS, digit, start)
    return _number(found)
