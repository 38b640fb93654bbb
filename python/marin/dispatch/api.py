"""`moe`: checks what it is given and runs a transport on every device of the mesh."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Float, Int

from marin.dispatch.dense import moe_dense
from marin.dispatch.local import moe_local
from marin.dispatch.pooled_wave import moe_pooled_wave
from marin.dispatch.stats import count
from marin.dispatch.transports import Dense, Local, PooledWave, Transport
from marin.dispatch.types import Experts, Routing, Stats
from marin.errors import MarinError

TOKEN_AXES = ("replica", "data", "expert")
AXES = (*TOKEN_AXES, "model")


def moe(
    x: Float[Array, "tokens w"],
    routing: Routing,
    experts: Experts,
    *,
    transport: Transport,
    mesh: Mesh,
) -> tuple[Float[Array, "tokens w"], Stats]:
    """Routed experts: `y[t] = sum_j weights[t, j] * swiglu_{experts[t, j]}(x[t])`.

    Dropped assignments are left out of the sum. Arrays are global. `mesh` has the axes replica,
    data, expert, model. Tokens are sharded over (replica, data, expert); an expert-parallel group
    is the `expert` axis, and its n-th device holds the n-th part of the experts; the inner width m
    is sharded over `model`. Differentiable in x, the combine weights and the expert weights. The
    result has the type of `x`; expert weights are rounded to it on the device and receive gradients
    of their own type.

    Raises MarinError where shapes and mesh do not fit.
    """
    _check(x, routing, experts, mesh)
    num_experts = experts.gate.shape[0]
    tokens = P(TOKEN_AXES)
    stats_specs = Stats._make([P()] * (len(Stats._fields) - 1) + [P(("replica", "data"), "expert")])
    on_mesh = partial(jax.shard_map, mesh=mesh, check_vma=False)
    if isinstance(transport, Dense):
        counted = on_mesh(
            partial(_count_dropless, num_experts=num_experts),
            in_specs=tokens,
            out_specs=stats_specs,
        )(routing)
        return moe_dense(x, routing, experts), counted
    held = None if isinstance(transport, Local) else "expert"
    run = on_mesh(
        partial(_device_part, transport=transport, num_experts=num_experts, mesh=mesh),
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


def _count_dropless(routing: Routing, *, num_experts: int) -> Stats:
    none = jnp.zeros(routing.experts.shape, bool)
    rows = routing.valid.sum(dtype=jnp.int32) * routing.experts.shape[1]
    return count(routing, none, none, rows, num_experts=num_experts, axes=TOKEN_AXES)


def _device_part(
    x: Array,
    routing: Routing,
    gate: Array,
    up: Array,
    down: Array,
    *,
    transport: Local | PooledWave,
    num_experts: int,
    mesh: Mesh,
) -> tuple[Array, Stats]:
    experts = Experts(gate, up, down)
    lost_sender: Bool[Array, "T K"] = jnp.zeros(routing.experts.shape, bool)
    lost_receiver = lost_sender
    rows: Int[Array, ""]
    if isinstance(transport, Local):
        y, rows = moe_local(x, routing, experts)
    else:
        y, lost_sender, lost_receiver, rows = moe_pooled_wave(
            x, routing, experts, transport, axis="expert", devices=mesh.shape["expert"]
        )
    if mesh.shape["model"] > 1:
        y = jax.lax.psum(y, "model")
    return y, count(
        routing, lost_sender, lost_receiver, rows, num_experts=num_experts, axes=TOKEN_AXES
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
