"""`grouped_swiglu` with its gradient and the block size that suits the device."""

from functools import partial

import jax
from jaxtyping import Array, Float, Int

from marin.kernels.backend import Backend, choose
from marin.kernels.grouped_swiglu import reference

# Rows per block. A CPU's matrix product is at its rate with few rows, and fewer mean less padding.
_BLOCK: dict[Backend, int] = {"reference": 64, "pallas_gpu": 128, "interpret": 128}


def block_rows(backend: Backend | None = None) -> int:
    """Rows per block that the implementation wants; see `layout.block_layout`."""
    return _BLOCK[choose("grouped_swiglu", backend)]


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
    blocks = (rows, expert_of_block, blocks_used)
    weights = tuple(p.astype(rows.dtype) for p in (gate, up, down))
    return _run(blocks, weights, backend, save=False)[0]


def _run(
    blocks: tuple[Array, Array, Array],
    weights: tuple[Array, ...],
    backend: Backend | None,
    *,
    save: bool,
) -> tuple[Array, tuple[Array, ...]]:
    chosen = choose("grouped_swiglu", backend)
    gate, up, down = weights
    if chosen == "reference":
        y, *saved = reference.forward(*blocks, gate, up, down)
        return y, tuple(saved)
    from marin.kernels.grouped_swiglu import pallas_gpu

    interpret = chosen == "interpret"
    return pallas_gpu.forward(*blocks, gate, up, down, save=save, interpret=interpret)


def _forward(
    rows: Array,
    expert_of_block: Array,
    blocks_used: Array,
    gate: Array,
    up: Array,
    down: Array,
    backend: Backend | None,
) -> tuple[Array, tuple[Array, ...]]:
    blocks = (rows, expert_of_block, blocks_used)
    weights = tuple(p.astype(rows.dtype) for p in (gate, up, down))
    y, saved = _run(blocks, weights, backend, save=True)
    return y, (*blocks, gate, up, down, *saved)


def _backward(
    backend: Backend | None, saved: tuple[Array, ...], dy: Array
) -> tuple[Array, None, None, Array, Array, Array]:
    rows, expert_of_block, blocks_used, gate, up, down, gate_rows, up_rows = saved
    weights = (p.astype(rows.dtype) for p in (gate, up, down))
    arguments = (rows, expert_of_block, blocks_used, *weights, gate_rows, up_rows, dy)
    chosen = choose("grouped_swiglu", backend)
    if chosen == "reference":
        dx, d_gate, d_up, d_down = reference.backward(*arguments)
    else:
        from marin.kernels.grouped_swiglu import pallas_gpu

        interpret = chosen == "interpret"
        dx, d_gate, d_up, d_down = pallas_gpu.backward(*arguments, interpret=interpret)
    return (
        dx,
        None,
        None,
        d_gate.astype(gate.dtype),
        d_up.astype(up.dtype),
        d_down.astype(down.dtype),
    )


grouped_swiglu.defvjp(_forward, _backward)
