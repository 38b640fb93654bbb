"""How often a run repeats its cells, and whether it may."""

from typing import TYPE_CHECKING

from marin.errors import MarinError
from marin.mixture.quotas import capacities, consumption, realized_pieces

if TYPE_CHECKING:
    from marin.mixture.schedule import Schedule

POLICIES = ("error", "repeat", "drop-and-renormalize")
_MAX_NAMED = 4


def check_policy(policy: str) -> None:
    """Raises `MarinError` unless `policy` is one of `POLICIES`."""
    if policy not in POLICIES:
        raise MarinError(f"exhaustion {policy!r}, expected one of {', '.join(POLICIES)}")


def check_exposure(schedule: "Schedule") -> None:
    """Under the policy `error`, refuses a schedule that takes more of a cell than its cap allows.

    Raises:
      MarinError: names the cells, their tokens and their epochs over all phases.
    """
    if schedule.exhaustion != "error":
        return
    used = consumption(realized_pieces(schedule), len(schedule.cells))
    allowed = capacities(schedule, len(schedule.revisions) - 1)
    over = [
        (name, tokens, limit)
        for name, tokens, limit in zip(schedule.cells, used, allowed, strict=True)
        if limit is not None and tokens > limit
    ]
    if over:
        cells = ", ".join(
            f"{name} ({float(tokens):.6g} tokens planned, {float(limit):.6g} allowed)"
            for name, tokens, limit in over[:_MAX_NAMED]
        )
        more = f" and {len(over) - _MAX_NAMED} more" if len(over) > _MAX_NAMED else ""
        cap = schedule.revisions[-1].specification.epoch_cap
        raise MarinError(
            f"over the cap of {cap} epochs: {cells}{more}; lower their weights, raise epoch_cap, "
            "or choose the exhaustion policy repeat or drop-and-renormalize"
        )
