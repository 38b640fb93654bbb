"""The hero architecture in Flax NNX, from a laptop-size preset to 535 billion parameters."""

from marin.model.batch import Batch
from marin.model.config import HeroConfig
from marin.model.create import abstract, create
from marin.model.groups import optimizer_groups
from marin.model.hero import Hero, LossAux, RouterBias
from marin.model.presets import PRESETS, Rung, preset, rung
from marin.model.sharding import make_mesh, parameter_shardings, parameter_specs, row_spec

__all__ = [
    "PRESETS",
    "Batch",
    "Hero",
    "HeroConfig",
    "LossAux",
    "RouterBias",
    "Rung",
    "abstract",
    "create",
    "make_mesh",
    "optimizer_groups",
    "parameter_shardings",
    "parameter_specs",
    "preset",
    "row_spec",
    "rung",
]
