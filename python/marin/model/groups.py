"""Which optimizer each parameter belongs to."""

import re
from typing import Any, Literal

import jax

from marin.model.sharding import path_of

Group = Literal["muonh", "adamh", "adam"]

NEWTON_SCHULZ_STEPS = 5
"""Of each MuonH direction."""

_MUONH = re.compile(
    r"attention/(query|key|value|output)$|(experts|shared)/(gate|up|down)$"
    r"|latent_(down|up)$|norm/(down|up)$"
)


def optimizer_groups(params: Any) -> Any:
    """A tree like `params` of group names.

    `muonh`: matrices of attention, experts, shared experts, latents and gated norms. `adamh`: the
    readout. `adam`: embedding, router, head gates, gains and convolutions. A matrix is the trailing
    two dimensions; leading ones (layers, experts) are a stack of matrices.
    """
    return jax.tree_util.tree_map_with_path(lambda keys, _: _group(path_of(keys)), params)


def _group(path: str) -> Group:
    if path == "readout":
        return "adamh"
    return "muonh" if _MUONH.search(path) else "adam"
