"""What one training step needs of each device, by abstract evaluation: nothing is allocated.

Weights, gradients and optimizer state follow the declared shardings. Activations are what
automatic differentiation keeps between the passes, read from the abstract backward function of the
device's share of the batch. Collectives are counted in the traced program of the whole mesh.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from marin.errors import MarinError
from marin.model.batch import Batch
from marin.model.config import HeroConfig
from marin.model.create import abstract
from marin.model.groups import optimizer_groups
from marin.model.sharding import AXES, ROWS, parameter_specs

_FLOAT32 = 4  # bytes
_MOMENTS = {"muonh": 1, "adamh": 2, "adam": 2}
"""Float32 arrays of a parameter's size that its optimizer keeps."""


@dataclass(frozen=True)
class DeviceBytes:
    """Bytes on one device. Weights, gradients and optimizer state are float32."""

    weights: int
    gradients: int
    optimizer: int
    saved_activations: int
    """Kept from the forward to the backward pass, under the configured rematerialization."""
    layer_activations: int
    """Made again for the backward pass of one layer; zero where everything is kept."""
    logits: int
    """One block of logits and its gradient."""

    @property
    def total(self) -> int:
        """The sum; the compiler's temporaries and the collectives' buffers come on top."""
        values: tuple[int, ...] = dataclasses.astuple(self)
        return sum(values)


def abstract_mesh(shape: dict[str, int]) -> AbstractMesh:
    """A mesh without devices; axes that are not named have size one."""
    for axis, size in shape.items():
        if axis not in AXES or size < 1:
            raise MarinError(f"mesh: {axis}={size}: expected {', '.join(AXES)}, each 1 or more")
    sizes = tuple(shape.get(axis, 1) for axis in AXES)
    return AbstractMesh(sizes, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def device_bytes(config: HeroConfig, mesh: AbstractMesh, rows: int, seq_len: int) -> DeviceBytes:
    """Bytes per device of a step on `rows` rows of `seq_len` tokens over the whole mesh."""
    params = nnx.state(abstract(config), nnx.Param)
    specs = jax.tree.leaves(parameter_specs(params, mesh), is_leaf=lambda x: isinstance(x, P))
    groups = jax.tree.leaves(optimizer_groups(params))
    weights = optimizer = 0
    for leaf, spec, group in zip(jax.tree.leaves(params), specs, groups, strict=True):
        held = _FLOAT32 * math.prod(leaf.shape) // _pieces(spec, mesh)
        weights += held
        optimizer += _MOMENTS[group] * held
    local_rows = rows_per_device(mesh, rows)
    layer = 0
    if config.remat != "none":
        one, two = (
            dataclasses.replace(config, remat="none", layers=n, global_every=n + 1) for n in (1, 2)
        )
        layer = _residual_bytes(two, local_rows, seq_len) - _residual_bytes(
            one, local_rows, seq_len
        )
    block = min(config.cross_entropy_block, config.vocab)
    return DeviceBytes(
        weights=weights,
        gradients=weights,
        optimizer=optimizer,
        saved_activations=_residual_bytes(config, local_rows, seq_len),
        layer_activations=layer,
        logits=2 * _FLOAT32 * local_rows * seq_len * block,
    )


def row_ranks(mesh: AbstractMesh) -> int:
    """Devices that the rows of a batch are divided over."""
    ranks: int = math.prod(mesh.shape[axis] for axis in ROWS)
    return ranks


def rows_per_device(mesh: AbstractMesh, rows: int) -> int:
    """Rows of a batch on each device; `MarinError` where they do not divide."""
    ranks = row_ranks(mesh)
    if rows % ranks:
        raise MarinError(
            f"mesh: {rows} rows over {ranks} devices of {' x '.join(ROWS)}: expected a multiple; "
            "change the mesh or the rows"
        )
    return rows // ranks


def _pieces(spec: P, mesh: AbstractMesh) -> int:
    axes = [
        axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())
    ]
    pieces: int = math.prod(mesh.shape[axis] for axis in axes)
    return pieces


@functools.cache
def _residual_bytes(config: HeroConfig, rows: int, seq_len: int) -> int:
    """Bytes of the arrays that the backward function of one device's rows holds, parameters
    aside."""
    mesh: Any = abstract_mesh({})
    graph, params, *state = nnx.split(abstract(config), nnx.Param, ...)

    def backward(params: Any, state: Any, batch: Batch) -> Any:
        def loss(params: Any) -> Any:
            return nnx.merge(graph, params, *state).loss(batch, mesh=mesh)[0]

        return jax.vjp(loss, params)[1]

    program = jax.make_jaxpr(backward)(params, state, _batch(rows, seq_len)).jaxpr
    given = {id(variable) for variable in program.invars}
    return _bytes_of(variable for variable in program.outvars if id(variable) not in given)


def _bytes_of(variables: Iterable[Any]) -> int:
    return sum(math.prod(v.aval.shape) * v.aval.dtype.itemsize for v in variables)


def _batch(rows: int, seq_len: int) -> Batch:
    integers: Any = jax.ShapeDtypeStruct((rows, seq_len), jnp.int32)
    mask: Any = jax.ShapeDtypeStruct((rows, seq_len), jnp.bool_)
    return Batch(integers, integers, integers, mask)


def all_to_all_bytes(config: HeroConfig, mesh: Any, rows: int, seq_len: int) -> int:
    """Bytes that one device sends through all-to-alls in one step, forward and backward,
    recomputation included; the part that stays on the device is not counted."""
    rows_per_device(mesh, rows)
    graph, params, *state = nnx.split(abstract(config), nnx.Param, ...)

    def loss(params: Any, state: Any, batch: Batch) -> Any:
        return nnx.merge(graph, params, *state).loss(batch, mesh=mesh)

    program = jax.make_jaxpr(jax.value_and_grad(loss, has_aux=True))(
        params, state, _batch(rows, seq_len)
    )
    ranks: int = mesh.shape["expert"]
    whole: int = sum(
        times * _bytes_of(operands)
        for name, operands, times in _operations(program.jaxpr, 1)
        if name in ("all_to_all", "ragged_all_to_all")
    )
    return whole * (ranks - 1) // ranks


def _operations(program: Any, times: int) -> Iterator[tuple[str, Any, int]]:
    """Every operation of a traced program, its operands, and how often scans run it."""
    for equation in program.eqns:
        yield equation.primitive.name, equation.invars, times
        inner = (
            times * equation.params.get("length", 1) if equation.primitive.name == "scan" else times
        )
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                body = getattr(part, "jaxpr", part)
                if hasattr(body, "eqns"):
                    yield from _operations(body, inner)
