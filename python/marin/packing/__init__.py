"""Documents into rows: plans made from lengths alone, and Arrow shards in training order."""

from marin.packing.config import PlanConfig, ShardConfig, packed_as, planned_as
from marin.packing.pack import pack, repair
from marin.packing.plan import plan
from marin.packing.planned import PlannedRows

__all__ = [
    "PlanConfig",
    "PlannedRows",
    "ShardConfig",
    "pack",
    "packed_as",
    "plan",
    "planned_as",
    "repair",
]
