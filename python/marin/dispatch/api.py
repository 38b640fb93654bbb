"""`moe`: checks what it is given and runs a transport on every device of the mesh."""

from collections.abc import Callable
from functools import partial
from typing import TypedDict

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from marin.dispatch.dense import moe_dense
from marin.dispatch.local import moe_local
from marin.dispatch.pooled_wave import moe_pooled_wave
from marin.dispatch.ragged import moe_ragged
from marin.dispatch.ring import moe_ring
from marin.dispatch.stats import count
from marin.dispatch.stripe import stripe, unstripe
from marin.dispatch.transports import Dense, Local, PooledWave, Ragged, Ring, Transport
from marin.dispatch.types import Experts, Routing, Stats
from marin.errors import MarinError

Counter = Callable[[Routing, Array, Array, Array], Stats]

TOKEN_AXES = ("replica", "data", "expert")
AXES = (*TOKEN_AXES, "model")


class Group(TypedDict):
    """The mesh axis of an expert-parallel group and its size."""

    axis: str
    devices: int


def moe(
    x: Float[Array, "tokens w"],
    routing: Routing,
    experts: Experts,
    *,
    transport: Transport,
    mesh: Mesh,
    num_sources: int = 0,
) -> tuple[Float[Array, "tokens w"], Stats]:
    """Routed experts: `y[t] = sum_j weights[t, j] * swiglu_{experts[t, j]}(x[t])`.

    Dropped assignments are left out of the sum. Arrays are global. `mesh` has the axes replica,
    data, expert, model. Tokens are sharded over (replica, data, expert); an expert-parallel group
    is the `expert` axis, and its n-th device holds the n-th part of the experts; the inner width m
    is sharded over `model`. Differentiable in x, the combine weights and the expert weights. The
    result has the type of `x`; expert weights are rounded to it on the device and receive gradients
    of their own type. `num_sources` is S of the statistics by source, if `routing` has sources.

    Raises MarinError where shapes and mesh do not fit.
    """
    _check(x, routing, experts, mesh)
    _check_transport(transport, x.shape[0], mesh)
    num_experts = experts.gate.shape[0]
    tokens = P(TOKEN_AXES)
    spec_of = {"device_rows": P(("replica", "data"), "expert")}
    stats_specs = Stats._make(spec_of.get(name, P()) for name in Stats._fields)
    counter = partial(count, num_experts=num_experts, num_sources=num_sources, axes=TOKEN_AXES)
    on_mesh = partial(jax.shard_map, mesh=mesh, check_vma=False)
    if isinstance(transport, Dense):
        counted = on_mesh(
            partial(_count_dropless, counter=counter),
            in_specs=tokens,
            out_specs=stats_specs,
        )(routing)
        return moe_dense(x, routing, experts), counted
    held = None if isinstance(transport, Local) else "expert"
    run = on_mesh(
        partial(_device_part, transport=transport, counter=counter, mesh=mesh),
        in_specs=(
            tokens,
            tokens,
            P(held, None, "model"),
            P(held, None, "model"),
            P(held, "model", None),
        ),
        out_specs=(tokens, stats_specs),
    )
    y, counted = run(x, routing, *experts)
    return y, counted


def _count_dropless(routing: Routing, *, counter: Counter) -> Stats:
    none = jnp.zeros(routing.experts.shape, bool)
    rows = routing.valid.sum(dtype=jnp.int32) * routing.experts.shape[1]
    return counter(routing, none, none, rows)


def _device_part(
    x: Array,
    routing: Routing,
    gate: Array,
    up: Array,
    down: Array,
    *,
    transport: Local | Ring | PooledWave | Ragged,
    counter: Counter,
    mesh: Mesh,
) -> tuple[Array, Stats]:
    experts = Experts(gate, up, down)
    group: Group = {"axis": "expert", "devices": mesh.shape["expert"]}
    lost_sender: Bool[Array, "T K"] = jnp.zeros(routing.experts.shape, bool)
    lost_receiver = lost_sender
    rows: Int[Array, ""]
    match transport:
        case Local():
            y, rows = moe_local(x, routing, experts)
        case Ring():
            y, rows = moe_ring(x, routing, experts, **group)
        case PooledWave():
            if transport.stripe:
                x, routing = stripe(x, routing, **group)
            y, lost_sender, lost_receiver, rows = moe_pooled_wave(
                x, routing, experts, transport, **group
            )
            if transport.stripe:
                y = unstripe(y, **group)
        case Ragged():
            y, lost_sender, rows = moe_ragged(x, routing, experts, transport, **group)
    if mesh.shape["model"] > 1:
        y = jax.lax.psum(y, "model")
    return y, counter(routing, lost_sender, lost_receiver, rows)


def _check_transport(transport: Transport, tokens: int, mesh: Mesh) -> None:
    devices = mesh.shape["expert"]
    per_device = tokens // (mesh.shape["replica"] * mesh.shape["data"] * devices)
    if isinstance(transport, PooledWave) and transport.stripe and per_device % devices:
        raise MarinError(
            f"pooled_wave: stripe deals {per_device} tokens per device over {devices} devices; "
            "choose a batch that is a multiple, or stripe = false"
        )


def _check(x: Array, routing: Routing, experts: Experts, mesh: Mesh) -> None:
    missing = [name for name in AXES if name not in mesh.shape]
    if missing:
        raise MarinError(
            f"mesh has the axes {tuple(mesh.shape)}; {', '.join(missing)} missing of {AXES}"
        )
    groups = mesh.shape["replica"] * mesh.shape["data"] * mesh.shape["expert"]
    if x.shape[0] % groups:
        raise MarinError(
            f"{x.shape[0]} tokens cannot be split over {groups} devices (replica x data x expert); "
            "choose a batch that is a multiple"
        )
    shape, wanted = experts.gate.shape, (x.shape[0], routing.experts.shape[1])
    if routing.experts.shape != routing.weights.shape or routing.experts.shape != wanted:
        raise MarinError(
            f"routing has experts {routing.experts.shape} and weights {routing.weights.shape} "
            f"for {x.shape[0]} tokens; both must be (tokens, top-k)"
        )
    if (
        shape[1] != x.shape[1]
        or experts.up.shape != shape
        or experts.down.shape
        != (
            shape[0],
            shape[2],
            shape[1],
        )
    ):
        raise MarinError(
            f"experts have gate {shape}, up {experts.up.shape}, down {experts.down.shape} for rows "
            f"of width {x.shape[1]}; expected (E, w, m), (E, w, m), (E, m, w)"
        )
    for what, size, axis in (("experts", shape[0], "expert"), ("expert width", shape[2], "model")):
        if size % mesh.shape[axis]:
            raise MarinError(
                f"{what} is {size}, not a multiple of the mesh's {axis} axis {mesh.shape[axis]}"
            )
