"""`grouped_swiglu` with its gradient and the block size that suits the device."""

from functools import partial

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from marin.kernels.backend import Backend, choose
from marin.kernels.grouped_swiglu import reference
from marin.kernels.grouped_swiglu.reference import Blocks, Weights

_BLOCK = 128
_SMALL_BLOCK = 64
"""On a CPU, where few rows suffice for a product's rate: less padding, but more slices of weights,
which cost a fifth of the time where each expert has many blocks (`benches/train.py`)."""


def block_rows(rows_per_expert: float, backend: Backend | None = None) -> int:
    """Rows per block that the implementation wants; see `layout.block_layout`."""
    if choose("grouped_swiglu", backend) == "reference" and rows_per_expert < 2 * _BLOCK:
        return _SMALL_BLOCK
    return _BLOCK


@partial(jax.custom_vjp, nondiff_argnums=(6,))
def grouped_swiglu(
    rows: Float[Array, "R w"],
    expert_of_block: Int[Array, " N"],
    blocks_used: Int[Array, ""],
    gate: Float[Array, "E w m"],
    up: Float[Array, "E w m"],
    down: Float[Array, "E m w"],
    backend: Backend | None = None,
) -> Float[Array, "R w"]:
    """`(silu(x gate_e) * (x up_e)) down_e` for each block of R / N rows with its own expert `e`.

    Rows of unused blocks are never read, and what the result has there is unspecified. Weights are
    rounded to the type of `rows` first; sums are float32; the result has the type of `rows`;
    gradients of the weights are summed in float32 and rounded once to the weights' own type, so
    float32 weights with bfloat16 rows receive float32 gradients. Empty rows inside a used block
    must be zero. On a GPU w and m are multiples of 64.
    """
    blocks = Blocks(rows, expert_of_block, blocks_used)
    return _run(blocks, Weights(gate, up, down), backend, save=False)[0]


def _rounded(weights: Weights, dtype: DTypeLike) -> Weights:
    return Weights(*(p.astype(dtype) for p in weights))


def _run(
    blocks: Blocks, weights: Weights, backend: Backend | None, *, save: bool
) -> tuple[Array, tuple[Array, ...]]:
    chosen = choose("grouped_swiglu", backend)
    weights = _rounded(weights, blocks.rows.dtype)
    if chosen == "reference":
        y, *saved = reference.forward(blocks, weights)
        return y, tuple(saved)
    from marin.kernels.grouped_swiglu import pallas_gpu

    interpret = chosen == "interpret"
    return pallas_gpu.forward(blocks, weights, save=save, interpret=interpret)


_Saved = tuple[Blocks, Weights, tuple[Array, ...]]


def _forward(
    rows: Array,
    owner: Array,
    used: Array,
    gate: Array,
    up: Array,
    down: Array,
    backend: Backend | None,
) -> tuple[Array, _Saved]:
    blocks, weights = Blocks(rows, owner, used), Weights(gate, up, down)
    y, saved = _run(blocks, weights, backend, save=True)
    return y, (blocks, weights, saved)


def _backward(
    backend: Backend | None, saved: _Saved, dy: Array
) -> tuple[Array, None, None, Array, Array, Array]:
    blocks, weights, (gate_rows, up_rows) = saved
    arguments = (blocks, _rounded(weights, blocks.rows.dtype), gate_rows, up_rows, dy)
    chosen = choose("grouped_swiglu", backend)
    if chosen == "reference":
        dx, *slopes = reference.backward(*arguments)
    else:
        from marin.kernels.grouped_swiglu import pallas_gpu

        dx, *slopes = pallas_gpu.backward(*arguments, interpret=chosen == "interpret")
    gate, up, down = (d.astype(p.dtype) for d, p in zip(slopes, weights, strict=True))
    return dx, None, None, gate, up, down


grouped_swiglu.defvjp(_forward, _backward)
