"""What a revised schedule keeps of an earlier plan: the rows that were trained on."""

from pathlib import Path

import numpy as np
import pyarrow as pa

from marin.engine import read_manifest
from marin.errors import MarinError
from marin.mixture import Schedule
from marin.packing.config import Policy
from marin.packing.layout import rows_file
from marin.packing.planned import PlannedRows, read_pieces

_OF_A_RUN = ("seed", "exhaustion", "simulated_horizon")
"""What no revision of a schedule changes."""


class KeptRows:
    """Rows before the first revision that `schedule` does not share with the plan `earlier`.

    Raises:
      MarinError: `schedule` is not a revision of the schedule of `earlier`, or `policy` is not its
        policy: what the two leave of a document differs.
    """

    def __init__(
        self, schedule: Schedule, earlier: Path | None, store: Path, policy: Policy
    ) -> None:
        self.rows = 0
        self._kept = np.zeros((len(schedule.row_stages), len(schedule.cells)), np.int64)
        self._cells = schedule.cells
        self._plan = None if earlier is None else PlannedRows(_plan_of(earlier), store)
        if self._plan is not None:
            before = self._plan.manifest.parameters["policy"]
            if before != policy:
                raise MarinError(
                    f"{self._plan.path}: planned with policy {before}, and the rest of the run "
                    f"cannot go on with {policy}; keep {before}"
                )
            self.rows = _common_rows(schedule, self._plan.schedule, self._plan.path)
            for number, stage in enumerate(schedule.row_stages):
                end = min(self.rows, stage.first_row + stage.rows)
                if end > stage.first_row:
                    counts = map(schedule.order.counts, (end, stage.first_row))
                    self._kept[number] = np.subtract(*counts)

    @property
    def plans(self) -> list[tuple[str, int]]:
        """(fingerprint, rows) of the plans whose first `rows` rows are this one's, too."""
        if self._plan is None:
            return []
        earlier = self._plan.manifest.summary["history"]
        return [
            (self._plan.manifest.fingerprint, self.rows),
            *((plan, min(rows, self.rows)) for plan, rows in earlier),
        ]

    def pieces(self, stage: int, cell: str) -> list[pa.ListArray]:
        """The kept rows of one stage and cell.

        Raises:
          MarinError: the earlier plan has fewer of them.
        """
        left = int(self._kept[stage, self._cells.index(cell)])
        kept: list[pa.ListArray] = []
        if left and self._plan is not None:
            for chunk in read_pieces(self._plan.verified(rows_file(stage, cell))):
                kept.append(_rebased(chunk.slice(0, left)))
                left -= len(kept[-1])
                if not left:
                    break
            if left:
                raise MarinError(
                    f"{self._plan.path}: cell {cell} has {left} rows fewer than this schedule "
                    "keeps; its mixture before the revision is another one, so plan without it"
                )
        return kept


def _plan_of(path: Path) -> Path:
    """The plan, also of a directory of shards that were packed from it."""
    summary = read_manifest(path).summary
    return Path(summary["plan"]) if "plan" in summary else path


def _common_rows(schedule: Schedule, earlier: Schedule, path: Path) -> int:
    pairs = zip(schedule.revisions, earlier.revisions, strict=False)
    common = next(
        (number for number, (new, old) in enumerate(pairs) if new != old),
        min(len(schedule.revisions), len(earlier.revisions)),
    )
    if not common or any(getattr(schedule, key) != getattr(earlier, key) for key in _OF_A_RUN):
        raise MarinError(
            f"{path}: the schedule is not a revision of this plan's; use Schedule.revised"
        )
    ends = [
        s.row_at(s.revisions[common].step) if common < len(s.revisions) else s.rows
        for s in (schedule, earlier)
    ]
    return min(ends)


def _rebased(rows: pa.ListArray) -> pa.ListArray:
    """A slice as an array of its own, without the pieces of other rows."""
    offsets = rows.offsets.to_numpy()
    begin, end = int(offsets[0]), int(offsets[-1])
    return pa.ListArray.from_arrays(
        pa.array(offsets - begin), rows.values.slice(begin, end - begin)
    )
