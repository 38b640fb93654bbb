"""Parameters and training FLOPs of a configuration, counted on the abstract module.

The reference's convention: norm gains, gates (of norms and of heads) and convolutions count in
neither number; `active` takes the routed experts of one token and leaves out embedding and readout.
"""

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import jax
from flax import nnx

from marin.model.config import HeroConfig
from marin.model.create import abstract
from marin.model.sharding import path_of

_PARTS: tuple[tuple[str, str], ...] = (
    (r"attention/(query|key|value|output)$", "attention"),
    (r"router/weight$", "router"),
    (r"experts/", "routed_experts"),
    (r"latent_(down|up)$", "latent"),
    (r"shared/", "shared_experts"),
    (r"^embedding$", "embedding"),
    (r"^readout$", "readout"),
    (r"conv/weight$", "convolutions"),
    (r"gain$", "gains"),
    (r"attention/gate$|norm/(down|up)$", "gates"),
)
_UNCOUNTED = ("convolutions", "gains", "gates")
_INACTIVE = (*_UNCOUNTED, "embedding", "readout")
BACKWARD = 2
"""The backward pass computes two products for each of the forward pass."""


@dataclass(frozen=True)
class Part:
    """Parameters of one part. `total` and `active` say what enters the convention's two numbers."""

    parameters: int
    total: int
    active: int


@functools.cache
def parts(config: HeroConfig) -> Mapping[str, Part]:
    """Every parameter of the module in exactly one part."""
    found = dict.fromkeys((name for _, name in _PARTS), 0)
    state = nnx.state(abstract(config), nnx.Param)
    for keys, leaf in jax.tree_util.tree_leaves_with_path(state):
        path = path_of(keys)
        name = next(name for pattern, name in _PARTS if re.search(pattern, path))
        found[name] += math.prod(leaf.shape)
    return MappingProxyType({name: _part(config, name, count) for name, count in found.items()})


def _part(config: HeroConfig, name: str, count: int) -> Part:
    active = 0 if name in _INACTIVE else count
    if name == "routed_experts":
        active = count // config.experts * config.top_k
    return Part(count, 0 if name in _UNCOUNTED else count, active)


def active_parameters(config: HeroConfig) -> int:
    """Parameters that one token meets, by the reference's convention."""
    return sum(part.active for part in parts(config).values())


def total_parameters(config: HeroConfig) -> int:
    """All parameters, by the reference's convention."""
    return sum(part.total for part in parts(config).values())


def forward_flops(config: HeroConfig, seq_len: int) -> dict[str, float]:
    """FLOPs of the forward pass per token of a row of `seq_len`, by part; a multiply-add is two.

    All matrices a token meets, readout and gates included, and attention's two products at half of
    the row, the mean of a causal query, in local layers too (the published convention).
    """
    counted = parts(config)
    met = {name: part.active for name, part in counted.items() if part.active}
    met["readout"] = counted["readout"].parameters
    met["gates"] = counted["gates"].parameters
    flops = {name: 2.0 * count for name, count in met.items()}
    width = config.heads * config.head_dim
    flops["attention_products"] = config.layers * 4.0 * width * seq_len / 2
    return flops


def train_flops_per_token(config: HeroConfig, seq_len: int) -> float:
    """FLOPs of forward and backward pass per token; recomputation is not counted."""
    return (1 + BACKWARD) * sum(forward_flops(config, seq_len).values())
