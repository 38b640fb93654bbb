"""Where every array of a model lies: the one place that names mesh axes.

Axes: `replica` (groups that each hold all experts), `data` (within a group), `expert` (ranks that
share the experts), `model` (heads and shared experts). Rows are spread over the first three.
Experts are spread over `expert`; dense matrices are cut over `data` and `expert` and gathered layer
by layer when used, their gradients scattered back. An axis that does not divide a dimension is left
out there.
"""

import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from marin.errors import MarinError

AXES = ("replica", "data", "expert", "model")
ROWS = ("replica", "data", "expert")
CUT = ("data", "expert")

# The spec of each parameter by the end of its path, for its trailing dimensions; the leading ones
# (layers, shared experts) are whole. A parameter without a rule is whole everywhere.
_RULES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    (r"attention/(query|key|value)$", (CUT, "model")),
    (r"attention/output$", ("model", CUT)),
    (r"experts/(gate|up)$", ("expert", "data", "model")),
    (r"experts/down$", ("expert", "model", "data")),
    (r"shared/(gate|up)$", (CUT, "model")),
    (r"shared/down$", ("model", CUT)),
    (r"latent_(down|up)$", (CUT, None)),
    (r"router/weight$", (CUT, None)),
    (r"norm/(down|up)$", (CUT, None)),
    (r"^(embedding|readout)$", (None, CUT)),
)


def make_mesh(
    *,
    replica: int = 1,
    data: int = 1,
    expert: int = 1,
    model: int = 1,
    devices: Sequence[jax.Device] | None = None,
) -> Mesh:
    """A mesh over the first `replica * data * expert * model` of the devices (default: all that
    JAX sees). `MarinError` when there are too few.
    """
    shape = (replica, data, expert, model)
    found = list(jax.devices() if devices is None else devices)
    needed = replica * data * expert * model
    if needed > len(found):
        raise MarinError(
            f"mesh: {dict(zip(AXES, shape, strict=True))} needs {needed} devices, "
            f"found {len(found)} ({found[0].platform}): make an axis smaller"
        )
    kinds = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(shape, AXES, kinds, devices=found[:needed])


def row_spec(ndim: int = 2) -> P:
    """The spec of arrays whose first dimension is rows (or tokens in row order)."""
    return P(ROWS, *(None,) * (ndim - 1))


def spec_of(path: str, shape: tuple[int, ...], mesh: Mesh | AbstractMesh) -> P:
    """The spec of the parameter at this path (`layers/attention/query`)."""
    for pattern, trailing in _RULES:
        if re.search(pattern, path):
            full = (None,) * (len(shape) - len(trailing)) + trailing
            return P(*(_fit(axes, size, mesh) for axes, size in zip(full, shape, strict=True)))
    return P(*(None,) * len(shape))


def _fit(axes: Any, size: int, mesh: Mesh | AbstractMesh) -> Any:
    """The axes that divide this dimension, taken in order."""
    kept: list[str] = []
    for axis in (axes,) if isinstance(axes, str) else axes or ():
        if size % mesh.shape[axis] == 0 and mesh.shape[axis] > 1:
            kept.append(axis)
            size //= mesh.shape[axis]
    return tuple(kept) if len(kept) > 1 else kept[0] if kept else None


def path_of(keys: Sequence[Any]) -> str:
    """`layers/attention/query` from a key path of `jax.tree_util` into an `nnx.State`."""
    return "/".join(str(key.key) for key in keys if hasattr(key, "key"))


def parameter_specs(params: Any, mesh: Mesh | AbstractMesh) -> Any:
    """A tree like `params` (arrays or shapes, e.g. an `nnx.State`) of `PartitionSpec`."""
    return jax.tree_util.tree_map_with_path(
        lambda keys, leaf: spec_of(path_of(keys), leaf.shape, mesh), params
    )


def parameter_shardings(params: Any, mesh: Mesh) -> Any:
    """A tree like `params` of `NamedSharding`."""
    return jax.tree_util.tree_map_with_path(
        lambda keys, leaf: NamedSharding(mesh, spec_of(path_of(keys), leaf.shape, mesh)), params
    )


def constrain(x: Array, mesh: Mesh | AbstractMesh, spec: P) -> Array:
    """States where an intermediate array lies."""
    placed: Array = jax.lax.with_sharding_constraint(x, NamedSharding(mesh, spec))
    return placed


def gather(params: Any, mesh: Mesh | AbstractMesh, dtype: Any, prefix: str = "") -> Any:
    """Parameters ready for use: matrices rounded to `dtype`, with the `CUT` axes gathered.

    Experts stay spread over `expert`, heads over `model`. What travels is of `dtype`; the result is
    float32, so that the gradient is, too. That is scattered back as soon as it is summed, so that
    no device keeps a whole one. Router, vectors and experts are not rounded: dispatch rounds the
    experts and sums their gradients over replicas in float32.
    """

    def ready(keys: Any, leaf: Array) -> Array:
        path = prefix + path_of(keys)
        routed = "experts/" in path
        exact = routed or "router/" in path
        moved = dtype if not exact and any(re.search(rule, path) for rule, _ in _RULES) else None
        cut = spec_of(path, leaf.shape, mesh)
        kept = ("expert", "model") if routed else ("model",)
        whole = P(*(axes if axes in kept else None for axes in cut))
        if whole == cut:
            return leaf
        return _gather(leaf, NamedSharding(mesh, whole), NamedSharding(mesh, cut), moved)

    return jax.tree_util.tree_map_with_path(ready, params)


def embed(
    table: Float[Array, "V d"], tokens: Int[Array, "B L"], mesh: Mesh | AbstractMesh, dtype: Any
) -> Float[Array, "B L d"]:
    """Rows of the embedding in `dtype`. Their gradient is summed in float32: that of a frequent
    token is a sum over thousands of positions, of which bfloat16 would lose most.
    """
    cut = NamedSharding(mesh, spec_of("embedding", table.shape, mesh))
    rows: Array = _embed(table, tokens, len(table), cut, dtype)
    return rows


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _embed(table: Array, tokens: Array, vocab: int, cut: NamedSharding, dtype: Any) -> Array:
    whole = jax.lax.with_sharding_constraint(table.astype(dtype), NamedSharding(cut.mesh, P()))
    return jnp.take(whole, tokens, axis=0)


def _embed_forward(
    table: Array, tokens: Array, vocab: int, cut: NamedSharding, dtype: Any
) -> tuple[Array, Array]:
    return _embed(table, tokens, vocab, cut, dtype), tokens


def _embed_backward(
    vocab: int, cut: NamedSharding, dtype: Any, tokens: Array, cotangent: Array
) -> tuple[Array, None]:
    zeros = jnp.zeros((vocab, cotangent.shape[-1]), jnp.float32)
    gradient = zeros.at[tokens].add(cotangent.astype(jnp.float32))
    return jax.lax.with_sharding_constraint(gradient, cut), None


_embed.defvjp(_embed_forward, _embed_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _gather(x: Array, whole: NamedSharding, cut: NamedSharding, moved: Any) -> Array:
    gathered: Array = jax.lax.with_sharding_constraint(x.astype(moved or x.dtype), whole)
    return gathered.astype(x.dtype)


def _gather_forward(
    x: Array, whole: NamedSharding, cut: NamedSharding, moved: Any
) -> tuple[Array, None]:
    return _gather(x, whole, cut, moved), None


def _gather_backward(
    whole: NamedSharding, cut: NamedSharding, moved: Any, _: None, cotangent: Array
) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(cotangent, cut),)


_gather.defvjp(_gather_forward, _gather_backward)
