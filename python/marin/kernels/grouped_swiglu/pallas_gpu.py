"""`grouped_swiglu` on a GPU: block-sparse matrix products on tensor cores.

Every block of rows belongs to one expert, so a product is a plain tiled one whose weight tile is
chosen by the block. Forward: one kernel makes gate, up and their activation from one read of the
rows, a second one projects down. Backward: `down` transposed with the activation's gradient fused;
the rows' gradient from gate and up in one accumulator; each weight's gradient as one product per
expert over its own blocks. Blocks beyond the used ones cost nothing and their rows stay unwritten:
nobody reads them.

Products of 16-bit rows are summed in float32 by the tensor cores; float32 rows use full float32
products, not TF32. Symbols: N blocks of B rows, R = N B, E experts, w and m as in `reference`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from marin.kernels.backend import power_of_two_tile
from marin.kernels.grouped_swiglu.reference import Blocks, Weights

# Blocks whose tiles are computed together, so that the weight tiles one of them reads are still in
# the second-level cache for the others.
_GROUP = 8
_WARPS = 8


class _Tiling(NamedTuple):
    """columns: of a result's tile. depth: elements of the summed dimension per step. stages: steps
    whose operands are in shared memory at a time; three of 16-bit operands take at most 192 KiB."""

    columns: int
    depth: int
    stages: int


def _tiling(dtype: DTypeLike) -> _Tiling:
    return _Tiling(128, 64, 3) if jnp.dtype(dtype).itemsize == 2 else _Tiling(64, 32, 1)


Tile = Array
Kernel = Callable[..., None]


def forward(
    blocks: Blocks,
    weights: Weights,
    *,
    save: bool,
    interpret: bool = False,
) -> tuple[Float[Array, "R w"], tuple[Float[Array, "R m"], ...]]:
    """The result, and gate and up before the activation if `save`; types as `reference.forward`."""
    rows, (gate, up, down) = blocks.rows, weights
    r, m = rows.shape[0], gate.shape[2]
    hidden = jax.ShapeDtypeStruct((r, m), rows.dtype)

    def gate_up(place: _Place, rows_ref: Any, gate_ref: Any, up_ref: Any, *out: Any) -> None:
        def terms(k: Any) -> tuple[Tile, ...]:
            x = rows_ref[place.rows, k]
            here = (place.expert, k, place.columns)
            return _dot(x, gate_ref[here]), _dot(x, up_ref[here])

        g, u = _accumulate(place, terms, 2, rows.shape[1])
        out[0][place.rows, place.columns] = (jax.nn.sigmoid(g) * g * u).astype(rows.dtype)
        if save:
            out[1][place.rows, place.columns] = g.astype(rows.dtype)
            out[2][place.rows, place.columns] = u.astype(rows.dtype)

    h, *saved = _per_block(gate_up, [hidden] * (3 if save else 1), blocks, interpret)(
        rows, gate, up
    )

    def project(place: _Place, h_ref: Any, down_ref: Any, out: Any) -> None:
        def terms(k: Any) -> tuple[Tile, ...]:
            return (_dot(h_ref[place.rows, k], down_ref[place.expert, k, place.columns]),)

        (y,) = _accumulate(place, terms, 1, m)
        out[place.rows, place.columns] = y.astype(rows.dtype)

    like_rows = jax.ShapeDtypeStruct(rows.shape, rows.dtype)
    (y,) = _per_block(project, [like_rows], blocks, interpret)(h, down)
    return y, tuple(saved)


def backward(
    blocks: Blocks,
    weights: Weights,
    gate_rows: Float[Array, "R m"],
    up_rows: Float[Array, "R m"],
    dy: Float[Array, "R w"],
    *,
    interpret: bool = False,
) -> tuple[
    Float[Array, "R w"], Float[Array, "E w m"], Float[Array, "E w m"], Float[Array, "E m w"]
]:
    """As `reference.backward`."""
    (rows, owner, used), (gate, up, down) = blocks, weights
    (r, w), m, dtype = rows.shape, gate.shape[2], rows.dtype
    hidden = jax.ShapeDtypeStruct((r, m), dtype)

    def activation(place: _Place, dy_ref: Any, down_ref: Any, g_ref: Any, u_ref: Any, *out: Any):  # type: ignore[no-untyped-def]
        def terms(k: Any) -> tuple[Tile, ...]:
            weights = down_ref[place.expert, place.columns, k]
            return (_dot(dy_ref[place.rows, k], weights, trans_b=True),)

        (dh,) = _accumulate(place, terms, 1, w)
        here = (place.rows, place.columns)
        g, u = g_ref[here].astype(jnp.float32), u_ref[here].astype(jnp.float32)
        sigmoid = jax.nn.sigmoid(g)
        silu = g * sigmoid
        out[0][here] = (dh * u * (sigmoid + silu * (1 - sigmoid))).astype(dtype)
        out[1][here] = (dh * silu).astype(dtype)
        out[2][here] = (silu * u).astype(dtype)

    dg, du, h = _per_block(activation, [hidden] * 3, blocks, interpret)(
        dy, down, gate_rows, up_rows
    )

    def rows_gradient(
        place: _Place, dg_ref: Any, du_ref: Any, gate_ref: Any, up_ref: Any, out: Any
    ) -> None:
        def terms(k: Any) -> tuple[Tile, ...]:
            here = (place.expert, place.columns, k)
            through_gate = _dot(dg_ref[place.rows, k], gate_ref[here], trans_b=True)
            return (through_gate + _dot(du_ref[place.rows, k], up_ref[here], trans_b=True),)

        (dx,) = _accumulate(place, terms, 1, m)
        out[place.rows, place.columns] = dx.astype(dtype)

    like_rows = jax.ShapeDtypeStruct(rows.shape, dtype)
    (dx,) = _per_block(rows_gradient, [like_rows], blocks, interpret)(dg, du, gate, up)

    experts = gate.shape[0]
    ascending = jnp.where(jnp.arange(owner.shape[0]) < used, owner, experts)
    starts = jnp.searchsorted(ascending, jnp.arange(experts + 1)).astype(jnp.int32)
    gradient = _weight_gradient(starts, r // owner.shape[0], interpret)
    return dx, gradient(rows, dg), gradient(rows, du), gradient(h, dy)


class _Place(NamedTuple):
    """Which tile of the result a program computes: its rows, its columns and their expert; and how
    many elements of the summed dimension it takes per step."""

    expert: Array
    rows: Any
    columns: Any
    shape: tuple[int, int]
    depth: int


def _per_block(
    kernel: Kernel,
    out_shapes: list[jax.ShapeDtypeStruct],
    of: Blocks,
    interpret: bool,
) -> Callable[..., list[Array]]:
    """Runs `kernel(place, inputs..., outputs...)` for every tile of every used block."""
    blocks = of.owner.shape[0]
    rows, width = out_shapes[0].shape[0] // blocks, out_shapes[0].shape[1]
    tiling = _tiling(out_shapes[0].dtype)
    columns = power_of_two_tile(width, tiling.columns)
    tiles = width // columns

    def body(owner_ref: Any, used_ref: Any, *refs: Any) -> None:
        program = pl.program_id(0)
        group, inner = program // (_GROUP * tiles), program % (_GROUP * tiles)
        height = jnp.minimum(blocks - group * _GROUP, _GROUP)
        block, tile = group * _GROUP + inner % height, inner // height

        @pl.when(block < used_ref[0])
        def _() -> None:
            where = (pl.ds(block * rows, rows), pl.ds(tile * columns, columns))
            shape = (rows, columns)
            kernel(_Place(owner_ref[block], *where, shape, tiling.depth), *refs)

    call = pl.pallas_call(
        body,
        out_shape=out_shapes,
        grid=(blocks * tiles,),
        compiler_params=plgpu.CompilerParams(num_warps=_WARPS, num_stages=tiling.stages),
        interpret=interpret,
        name=f"grouped_swiglu_{kernel.__name__}",
    )
    return lambda *inputs: call(of.owner, of.used.reshape(1), *inputs)


def _weight_gradient(
    starts: Int[Array, " E+1"], rows: int, interpret: bool
) -> Callable[[Float[Array, "R a"], Float[Array, "R b"]], Float[Array, "E a b"]]:
    """Per expert the product of `left` transposed and `right` over the rows of its blocks."""
    experts = starts.shape[0] - 1

    def gradient(left: Float[Array, "R a"], right: Float[Array, "R b"]) -> Float[Array, "E a b"]:
        tiling = _tiling(left.dtype)
        step = min(rows, tiling.depth)
        height = power_of_two_tile(left.shape[1], tiling.columns)
        width = power_of_two_tile(right.shape[1], tiling.columns)
        down, across = left.shape[1] // height, right.shape[1] // width

        def kernel(starts_ref: Any, left_ref: Any, right_ref: Any, out: Any) -> None:
            program = pl.program_id(0)
            expert, inner = program // (down * across), program % (down * across)
            a = pl.ds(inner // across * height, height)
            b = pl.ds(inner % across * width, width)

            def body(i: Array, total: Tile) -> Tile:
                k = pl.ds(i * step, step)
                return total + _dot(left_ref[k, a], right_ref[k, b], trans_a=True)

            first, last = (starts_ref[expert + i] * (rows // step) for i in (0, 1))
            zero = jnp.zeros((height, width), jnp.float32)
            out[expert, a, b] = jax.lax.fori_loop(first, last, body, zero)

        call = pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((experts, left.shape[1], right.shape[1]), jnp.float32),
            grid=(experts * down * across,),
            compiler_params=plgpu.CompilerParams(num_warps=_WARPS, num_stages=tiling.stages),
            interpret=interpret,
            name="grouped_swiglu_weight_gradient",
        )
        result: Array = call(starts, left, right)
        return result

    return gradient


def _accumulate(
    place: _Place, terms: Callable[[Any], tuple[Tile, ...]], count: int, depth: int
) -> tuple[Tile, ...]:
    """The float32 sums of `count` tiles over all steps of a summed dimension of `depth`."""
    step = power_of_two_tile(depth, place.depth)

    def body(i: Array, sums: tuple[Tile, ...]) -> tuple[Tile, ...]:
        return tuple(s + t for s, t in zip(sums, terms(pl.ds(i * step, step)), strict=True))

    zeros = tuple(jnp.zeros(place.shape, jnp.float32) for _ in range(count))
    sums: tuple[Tile, ...] = jax.lax.fori_loop(0, depth // step, body, zeros)
    return sums


def _dot(a: Tile, b: Tile, *, trans_a: bool = False, trans_b: bool = False) -> Tile:
    full = a.dtype == jnp.float32
    product: Array = plgpu.dot(a, b, trans_a=trans_a, trans_b=trans_b, allow_tf32=not full)
    return product.astype(jnp.float32)
