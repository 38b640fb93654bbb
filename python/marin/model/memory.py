"""What one training step needs of each device, by abstract evaluation: nothing is allocated.

Weights, gradients and optimizer state follow the declared shardings. Activations are what
automatic differentiation keeps between the passes, read from the abstract backward function of the
device's share of the batch. Exchanges are counted in the traced program of the whole mesh where its
shapes say what moves; the true lengths of `ragged` come from its formula.
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

from marin.dispatch import Dense, Local, PooledWave, Ragged, Ring, ragged, ring
from marin.dispatch.pooled_wave import exchange_bytes
from marin.errors import MarinError
from marin.model.batch import Batch
from marin.model.config import HeroConfig
from marin.model.create import abstract
from marin.model.groups import optimizer_groups
from marin.model.sharding import AXES, ROWS, parameter_specs

_FLOAT32 = 4  # bytes
_ONE_CHUNK: dict[str, Any] = {
    "transport": "pooled_wave",
    "waves": 1,
    "transport_capacity": 1.0,
    "receiver_capacity": 1.0,
    "stripe": False,
}
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
    """Made again for the backward pass of one layer, or of one chunk or visit of its experts where
    they are spread by `ragged` or `ring`; zero where everything is kept."""
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
    block = min(config.cross_entropy_block, config.vocab)
    return DeviceBytes(
        weights=weights,
        gradients=weights,
        optimizer=optimizer,
        saved_activations=_residual_bytes(config, local_rows, seq_len),
        layer_activations=_layer_activations(config, local_rows, seq_len),
        logits=2 * _FLOAT32 * local_rows * seq_len * block,
    )


def _layer_activations(config: HeroConfig, rows: int, seq_len: int) -> int:
    """What is alive in the backward pass of a layer beyond `saved_activations`.

    `ragged` makes one chunk of n again at a time, whose worst case is all A rows of a batch; `ring`
    one visit, with room for A rows. Other transports that hold the same stand in for them.
    """
    everything = dataclasses.replace(config, remat="none")
    alive = everything
    match config.make_transport():
        case Ragged():
            alive = dataclasses.replace(everything, **_ONE_CHUNK)
        case Ring():
            alive = dataclasses.replace(everything, transport="local")
    kept = _layer_bytes(everything, rows, seq_len) if config.remat == "none" else 0
    return _layer_bytes(alive, rows, seq_len) - kept


def _layer_bytes(config: HeroConfig, rows: int, seq_len: int) -> int:
    one, two = (
        _residual_bytes(dataclasses.replace(config, layers=n, global_every=n + 1), rows, seq_len)
        for n in (1, 2)
    )
    return two - one


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


def routed_forwards(config: HeroConfig) -> int:
    """Times that the routed experts are computed forward in one step.

    Once, and once more for the backward pass unless everything is kept. `ragged` and `ring` keep
    nothing within their passes and make it again themselves: on top of what a layer does that is
    made again as a whole, and instead of it where what the experts return is kept.
    """
    own = config.transport in ("ragged", "ring")
    return 1 + own + (config.remat == "block" or (config.remat == "save_moe" and not own))


def passes_exchanged(config: HeroConfig) -> float:
    """Times that the routed rows of a layer cross the network, there and back, in one step: in
    units of `exchanged_bytes`."""
    forwards = routed_forwards(config)
    if config.transport == "ring":
        # The second forward computation is part of the backward turn, and its rows travel in it.
        itemsize = jnp.dtype(config.dtype).itemsize
        return forwards - 1 + (itemsize + 2 * _FLOAT32) / (itemsize + _FLOAT32)
    return forwards + 1.0


def exchanged_bytes(config: HeroConfig, ranks: int, tokens: int) -> float:
    """Bytes that leave a device in one forward pass of one layer over `ranks` expert ranks."""
    width, dtype = config.latent, config.dtype
    match config.make_transport():
        case PooledWave() as transport:
            sent = exchange_bytes(transport, tokens, config.top_k, ranks, width, dtype)
            return sent * (ranks - 1) / ranks
        case Ragged():
            return ragged.exchange_bytes(tokens, config.top_k, ranks, width, dtype)
        case Ring():
            return float(ring.exchange_bytes(tokens, ranks, width, dtype))
        case Local() | Dense():
            weights = 3 * config.experts * width * config.expert_width
            return float(weights * jnp.dtype(dtype).itemsize * (ranks - 1) / ranks)


def all_to_all_bytes(config: HeroConfig, mesh: Any, rows: int, seq_len: int) -> int:
    """Bytes of rows that one device sends to others of its expert group in one step, forward and
    backward, recomputation included: in all-to-alls, or around the ring."""
    tokens = rows_per_device(mesh, rows) * seq_len
    ranks: int = mesh.shape["expert"]
    if config.transport == "ragged":  # the program has the bounds, and on a CPU an emulation
        sent = passes_exchanged(config) * exchanged_bytes(config, ranks, tokens)
        return round(config.layers * sent)
    graph, params, *state = nnx.split(abstract(config), nnx.Param, ...)

    def loss(params: Any, state: Any, batch: Batch) -> Any:
        return nnx.merge(graph, params, *state).loss(batch, mesh=mesh)

    program = jax.make_jaxpr(jax.value_and_grad(loss, has_aux=True))(
        params, state, _batch(rows, seq_len)
    )
    sent_by: dict[str, int] = {"all_to_all": 0, "ppermute": 0}
    for name, operands, times in _operations(program.jaxpr, 1):
        if name in sent_by:
            sent_by[name] += times * _bytes_of(operands)
    around = sent_by["ppermute"] if ranks > 1 else 0
    return sent_by["all_to_all"] * (ranks - 1) // ranks + around


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
