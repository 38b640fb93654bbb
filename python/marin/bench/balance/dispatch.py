"""What one device dispatches: the parts of a layer's expert exchange, and each transport.

On the present device the parts are the kernels, timed alone, and a transport is `moe` as a whole,
forward, over all devices of the mesh. For a device that is only named, both come from the cost
model of `marin.plan`.
"""

import statistics
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from marin.dispatch import Experts, Routing, Transport, moe, parse_transport
from marin.dispatch.exchange import all_to_all
from marin.kernels import measure
from marin.kernels.backend import choose
from marin.kernels.combine_rows import bench as combine_rows
from marin.kernels.grouped_swiglu import bench as grouped_swiglu
from marin.kernels.permute_rows import bench as permute_rows
from marin.kernels.rank_in_group import bench as rank_in_group
from marin.model import HeroConfig
from marin.model.memory import exchanged_bytes
from marin.plan import Device, Factors

TRANSPORTS = ("local", "ring", "pooled_wave", "ragged")
PARTS = ("rank", "permute", "exchange", "grouped product", "combine")


@dataclass(frozen=True)
class DispatchRates:
    """Tokens per second and device through one layer, forward.

    Attributes:
      parts: each part alone; one that moves nothing (the exchange of one device) is left out.
      transports: all parts together.
    """

    parts: dict[str, float]
    transports: dict[str, float]

    @property
    def fastest(self) -> tuple[str, float]:
        name = max(self.transports, key=lambda transport: self.transports[transport])
        return name, self.transports[name]


def shape_of(config: HeroConfig, tokens: int, devices: int) -> measure.Shape:
    """What one of `devices` devices sees of a layer."""
    dtype = jnp.bfloat16 if config.dtype == "bfloat16" else jnp.float32
    return measure.Shape(
        tokens, config.top_k, config.latent, config.expert_width, config.experts // devices, dtype
    )


def kernel_cases(shape: measure.Shape) -> dict[str, measure.Case]:
    """The forward case of each kernel by the part it is."""
    kernels = {
        "rank": rank_in_group,
        "permute": permute_rows,
        "grouped product": grouped_swiglu,
        "combine": combine_rows,
    }
    return {name: kernel.cases(shape)[0] for name, kernel in kernels.items()}


def peer_rates(config: HeroConfig, tokens: int, devices: int, runs: int) -> dict[str, float]:
    """The same parts by what else does them, as `part, by tool`."""
    rates = {}
    for name, case in kernel_cases(shape_of(config, tokens, devices)).items():
        for tool, rival in case.rivals.items():
            seconds = measure.seconds(rival, *case.arguments, runs=runs)
            rates[f"{name}, by {tool}"] = tokens / statistics.median(seconds)
    return rates


def measured_rates(config: HeroConfig, tokens: int, devices: int, runs: int) -> DispatchRates:
    """Of JAX's first `devices` devices, each with `tokens` tokens and its part of the experts.

    Virtual devices share this machine's cores, and so each has its share of them.
    """
    shape = shape_of(config, tokens, devices)
    parts = {}
    for name, case in kernel_cases(shape).items():
        backend = choose(case.op, None)
        seconds = measure.seconds(case.run(backend), *case.arguments, runs=runs)
        parts[name] = tokens / statistics.median(seconds)
    mesh = jax.make_mesh(
        (1, 1, devices, 1),
        ("replica", "data", "expert", "model"),
        (jax.sharding.AxisType.Auto,) * 4,
        devices=jax.devices()[:devices],
    )
    if devices > 1:
        parts["exchange"] = tokens / statistics.median(_exchange(shape, mesh, devices, runs))
    transports = {
        name: tokens
        / statistics.median(_transport(config, parse_transport(name), shape, mesh, devices, runs))
        for name in TRANSPORTS
        if name == "local" or (devices > 1 and _runs_here(name))
    }
    return DispatchRates({name: parts[name] for name in PARTS if name in parts}, transports)


def _runs_here(transport: str) -> bool:
    """On a CPU the ragged all-to-all is emulated, and the time of that says nothing."""
    return transport != "ragged" or jax.default_backend() != "cpu"


def _exchange(
    shape: measure.Shape, mesh: jax.sharding.Mesh, devices: int, runs: int
) -> list[float]:
    """Seconds of the rows of all assignments there and back."""
    spec = jax.sharding.PartitionSpec("expert")
    rows = jnp.zeros((devices * shape.rows // devices * devices, shape.width), shape.dtype)
    rows = jax.device_put(rows, jax.sharding.NamedSharding(mesh, spec))

    @jax.shard_map(mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    def there_and_back(rows: jax.Array) -> jax.Array:
        return all_to_all(all_to_all(rows, "expert") + 1, "expert")

    return measure.seconds(there_and_back, rows, runs=runs)


def _transport(
    config: HeroConfig,
    transport: Transport,
    shape: measure.Shape,
    mesh: jax.sharding.Mesh,
    devices: int,
    runs: int,
) -> list[float]:
    count = shape.tokens * devices
    key = jax.random.split(jax.random.key(0), 5)
    x = jax.random.normal(key[0], (count, shape.width), shape.dtype)
    scores = jax.random.uniform(key[1], (count, config.experts))
    weights, chosen = jax.lax.top_k(scores, config.top_k)
    routing = Routing(chosen, weights, jnp.ones(count, bool))
    wide = (config.experts, shape.width, shape.inner)
    narrow = (config.experts, shape.inner, shape.width)
    experts = Experts(
        *(
            jax.random.normal(k, size).astype(shape.dtype)
            for k, size in zip(key[2:], (wide, wide, narrow), strict=True)
        )
    )

    def layer(x: jax.Array, routing: Routing, experts: Experts) -> jax.Array:
        return moe(x, routing, experts, transport=transport, mesh=mesh)[0]

    return measure.seconds(layer, x, routing, experts, runs=runs)


def modelled_rates(config: HeroConfig, device: Device, tokens: int) -> DispatchRates:
    """Of a named device in its group, with `tokens` tokens; see `marin.plan.factors`.

    Ranks and permutations are bound by memory, the grouped product by the matrix units and the
    exchange by the network; a transport is the sum of what it does.
    """
    factors = Factors()
    row = config.latent * (2 if config.dtype == "bfloat16" else 4)
    memory = device.bandwidth * factors.memory
    seconds = {
        # Four sweeps of a radix sort over 8-byte pairs, read and written.
        "rank": 64.0 * config.top_k / memory,
        "permute": 2.0 * config.top_k * row / memory,
        "exchange": 2.0 * config.top_k * row / (device.link * factors.network),
        "grouped product": 6.0 * config.top_k * config.latent * config.expert_width
        / (device.bfloat16 * factors.matrix),
        "combine": (config.top_k + 1) * row / memory,
    }  # fmt: skip
    local = sum(seconds[name] for name in ("rank", "permute", "grouped product", "combine"))
    # Rows are ranked, permuted and summed at the sender, and again by expert at the receiver.
    twice = local + sum(seconds[name] for name in ("rank", "permute", "combine"))
    transports = {}
    for name in TRANSPORTS:
        sent = exchanged_bytes(replace(config, transport=name), device.group, tokens)
        work = local if name in ("local", "ring") else twice
        transports[name] = 1 / (work + sent / tokens / (device.link * factors.network))
    return DispatchRates({name: 1 / seconds[name] for name in PARTS}, transports)
