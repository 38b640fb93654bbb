"""The seconds of one training step, part by part.

Parts run one after the other: nothing is taken to overlap, and what does overlap in a real run is
inside the efficiency factors. Every layer is computed forward, once more for the backward pass, and
backward at twice the forward cost, the exchanges included (rematerialization `block` and
`save_moe`; without it there is no second forward pass). Routed experts under `ragged` and `ring`
are computed forward as often as `marin.model.memory.routed_forwards` says.

T: tokens of one device per step. Other symbols as in `marin.model.config`.
"""

import math
from dataclasses import dataclass
from functools import cache

from marin.dispatch import PooledWave, Ragged, Ring
from marin.errors import MarinError
from marin.model import HeroConfig
from marin.model.count import BACKWARD, forward_flops, parts
from marin.model.groups import NEWTON_SCHULZ_STEPS
from marin.model.memory import exchanged_bytes, passes_exchanged, routed_forwards
from marin.plan.devices import Device
from marin.plan.factors import Factors

_ATTENTION_BACKWARD = 2.5
"""A fused backward pass makes the weights again: five products for the forward pass's two."""
_MASTER = 4
"""Bytes of a float32 weight or gradient."""
_BYTES_PER_WEIGHT = 40
"""Read and written per weight and step: cast three times, gradient written and read, weight and
momentum updated, and the normalizing passes of the optimizer."""
_ROUTER_PASSES = 8
"""Passes over the float32 scores of all experts: bias, top-k, threshold, quantile, statistics."""


@dataclass(frozen=True)
class Part:
    """Part of a step: `amount` of `unit` at `rate` per second."""

    name: str
    amount: float
    unit: str
    rate: float

    @property
    def seconds(self) -> float:
        return self.amount / self.rate


@dataclass(frozen=True)
class Step:
    """A step of all devices. `tokens` are those of the whole batch."""

    parts: tuple[Part, ...]
    tokens: int
    model_flops: float
    """Of the batch, by the published convention: no recomputation, no optimizer."""

    @property
    def seconds(self) -> float:
        return sum(part.seconds for part in self.parts)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds

    def mfu(self, device: Device, devices: int) -> float:
        """Model FLOPs per second over the devices' bfloat16 peak."""
        return self.model_flops / self.seconds / devices / device.bfloat16


def step_cost(
    config: HeroConfig,
    device: Device,
    *,
    groups: int,
    rows: int,
    seq_len: int,
    factors: Factors = Factors(),
) -> Step:
    """The parts of a step of `rows` rows over `groups` groups of devices.

    Raises:
      MarinError: the rows or the experts do not divide over the devices.
    """
    devices = groups * device.group
    if rows % devices:
        raise MarinError(f"{rows} rows over {devices} devices: expected a multiple")
    if config.experts % device.group:
        raise MarinError(
            f"{config.experts} experts over the {device.group} devices of a group: expected a "
            "multiple"
        )
    tokens = rows * seq_len // devices
    flops = forward_flops(config, seq_len)
    again = 0.0 if config.remat == "none" else 1.0
    passes = 1 + again + BACKWARD
    routed_passes = routed_forwards(config) + BACKWARD
    matrices = sum(flops.values()) - flops["attention_products"] - flops["router"]
    matrices -= flops["routed_experts"]
    weights = parameters_per_device(config, device.group)
    peak = device.bfloat16
    network = device.link * factors.network
    found = (
        Part(
            "matrix products",
            (passes * matrices + routed_passes * flops["routed_experts"]) * tokens,
            "FLOP",
            peak * factors.matrix,
        ),
        Part(
            "attention",
            (1 + again + _ATTENTION_BACKWARD) * attention_flops(config, seq_len) * tokens,
            "FLOP",
            peak * factors.attention,
        ),
        Part("router", passes * flops["router"] * tokens, "FLOP", device.float32 * factors.plain),
        Part(
            "activations",
            (passes * activation_bytes(config) + routed_passes * routed_bytes(config, device.group))
            * tokens,
            "B",
            device.bandwidth * factors.memory,
        ),
        Part("all-to-all", passes_exchanged(config) * _sent(config, device, tokens), "B", network),
        Part("dense weights", gathered_bytes(config, device.group), "B", network),
        Part(
            "gradients between groups",
            2 * (groups - 1) / groups * weights * _MASTER,
            "B",
            device.uplink * factors.network,
        ),
        Part("weights", weights * _BYTES_PER_WEIGHT, "B", device.bandwidth * factors.memory),
        Part(
            "Newton-Schulz", newton_schulz_flops(config) / device.group, "FLOP",
            peak * factors.matrix,
        ),
    )  # fmt: skip
    whole = rows * seq_len
    return Step(found, whole, (1 + BACKWARD) * sum(flops.values()) * whole)


def _sent(config: HeroConfig, device: Device, tokens: int) -> float:
    return config.layers * exchanged_bytes(config, device.group, tokens)


def attention_flops(config: HeroConfig, seq_len: int) -> float:
    """FLOPs of both products per token that a causal and windowed kernel computes, forward; rows
    of one document, which is the most that packed rows can cost."""
    window = min(config.window, seq_len)
    local = window - window * (window - 1) / 2 / seq_len
    keys = sum(seq_len / 2 if is_global else local for is_global in config.global_layers)
    return 4.0 * config.heads * config.head_dim * keys


def activation_bytes(config: HeroConfig) -> float:
    """Bytes per token that one forward pass reads and writes in memory, besides weights and what
    `routed_bytes` counts.

    Counted per layer with neighbouring element-wise operations fused: what a product, an attention
    kernel, a permutation or an exchange reads and writes, and one read and one write for each chain
    between them.
    """
    itemsize = 2 if config.dtype == "bfloat16" else 4
    d, w, m = config.hidden, config.latent, config.expert_width
    query, key = config.heads * config.head_dim, config.kv_local * config.head_dim
    attention = (
        4 * d  # gated norm: two sweeps
        + (d + query + 2 * key)  # projections
        + 2 * (query + key)  # norm and rotation
        + 2 * key  # convolution on the keys
        + (2 * query + 2 * key)  # fused attention
        + 4 * query  # own value subtracted, head gate, convolution
        + (query + d)  # output projection
        + 3 * d  # residual
    )
    experts = (
        4 * d  # gated norm
        + (d + w) + 2 * w + (w + d)  # latent down, its norm, latent up
        + (d + 2 * config.shared_experts * m)  # shared gate and up
        + 3 * config.shared_experts * m
        + (config.shared_experts * m + d)
        + 3 * d + 2 * d + 3 * d  # sum, convolution, residual
    )  # fmt: skip
    scores = 4 * (d + _ROUTER_PASSES * config.experts)
    return config.layers * (itemsize * (attention + experts) + scores)


def routed_bytes(config: HeroConfig, ranks: int) -> float:
    """As `activation_bytes`, of the routed experts and their transport over `ranks` expert ranks.

    `ragged` and `ring` sweep buffers for the worst case besides the rows that are there.
    """
    itemsize = 2 if config.dtype == "bfloat16" else 4
    w, m = config.latent, config.expert_width
    transport = config.make_transport()
    filled = transport.transport_capacity if isinstance(transport, PooledWave) else 1.0
    rows = filled * (
        2 * w  # permuted
        + 4 * w  # in and out of the buffers of both exchanges
        + (w + 2 * m)  # gate and up
        + 3 * m  # their product
        + (m + w)  # down
        + w  # combined
    )
    empty = 0
    if isinstance(transport, Ragged):
        empty = 3 * (ranks - 1) * w  # cleared, grouped by expert, back in the order of arrival
    elif isinstance(transport, Ring):
        empty = (ranks - 1) * w  # grouped by expert
    return config.layers * itemsize * config.top_k * (rows + empty)


def parameters_per_device(config: HeroConfig, ranks: int) -> float:
    """Weights that one of `ranks` devices holds: experts spread, dense matrices cut."""
    return sum(_parameters(config).values()) / ranks


# Counting traces the whole model, which takes a large part of a second.
@cache
def _parameters(config: HeroConfig) -> dict[str, int]:
    return {name: part.parameters for name, part in parts(config).items()}


def gathered_bytes(config: HeroConfig, ranks: int) -> float:
    """Bytes a device receives to have the dense matrices at hand: gathered in the compute type
    for each pass, their gradients scattered in float32."""
    itemsize = 2 if config.dtype == "bfloat16" else 4
    counts = _parameters(config)
    dense = sum(counts.values()) - counts["routed_experts"]
    gathers = 2 if config.remat == "none" else 3
    return dense * (gathers * itemsize + _MASTER) * (ranks - 1) / ranks


def newton_schulz_flops(config: HeroConfig) -> float:
    """FLOPs of the orthogonalization of all matrices of one model, per step, which the devices of a
    group share (`marin.train.newton_schulz`).

    One step on an n x m matrix, n <= m, takes X X^T (2 n^2 m), its square (2 n^3) and the product
    with X (2 n^2 m).
    """
    return NEWTON_SCHULZ_STEPS * sum(
        count * _product(min(a, b), max(a, b)) for count, a, b in orthogonalized(config)
    )


def orthogonalized(config: HeroConfig) -> list[tuple[int, int, int]]:
    """The MuonH matrices of a model as (count, rows, columns)."""
    d, w, m = config.hidden, config.latent, config.expert_width
    query, key = config.heads * config.head_dim, config.kv_local * config.head_dim
    layer = (
        (2, d, query), (2, d, key), (2, d, w), (3 * config.shared_experts, d, m),
        (3 * config.experts, w, m), (4, d, config.gate_rank),
    )  # fmt: skip
    ends = (4, d, config.gate_rank)  # the gated norms after the embedding and before the readout
    return [*((config.layers * count, a, b) for count, a, b in layer), ends]


def _product(n: int, m: int) -> float:
    return 4.0 * n * n * m + 2.0 * math.pow(n, 3)
