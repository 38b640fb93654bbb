"""The mixture: from a specification to exact quotas and a reproducible order of rows.

    spec = load("harrier-2026.08.18")
    schedule = Schedule.of(spec, constant_batches(11264 * 4096, [(0.0, 4096), (0.5, 8192)]))
    places = schedule.order.rows(0, 11264)

Every cell's cumulative count of rows stays within 1.5 rows of its target at every row of the run,
and where a row comes from is found in time independent of its number.
"""

from marin.mixture.order import Documents, Order, Places
from marin.mixture.runs import Revision, RowStage, Run, Stage, constant_batches
from marin.mixture.schedule import Schedule
from marin.mixture.specification import Phase, Specification, load, presets
from marin.mixture.tilt import tilted

__all__ = [
    "Documents",
    "Order",
    "Phase",
    "Places",
    "Revision",
    "RowStage",
    "Run",
    "Schedule",
    "Specification",
    "Stage",
    "constant_batches",
    "load",
    "presets",
    "tilted",
]
