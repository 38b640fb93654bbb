"""Expert parallelism: one function, several transports that agree.

A transport decides how rows reach their experts. It holds no parameters, so a checkpoint does not
depend on it and it may change at any step.

Symbols: T tokens of one device, K experts per token, A = T K assignments, E experts, n devices of
the expert axis, W waves, w width of a row, m width inside an expert, R rows of a buffer.
"""

from marin.dispatch.api import moe
from marin.dispatch.transports import (
    Dense,
    Local,
    PooledWave,
    Ragged,
    Ring,
    Transport,
    parse_transport,
)
from marin.dispatch.types import Experts, Routing, Stats

__all__ = [
    "Dense",
    "Experts",
    "Local",
    "PooledWave",
    "Ragged",
    "Ring",
    "Routing",
    "Stats",
    "Transport",
    "moe",
    "parse_transport",
]
