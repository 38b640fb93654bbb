"""Where a run stands in its data."""

import json
from dataclasses import dataclass
from typing import Any

from marin.errors import MALFORMED, MarinError


@dataclass(frozen=True)
class Cursor:
    """Enough to go on from here on any number of readers.

    plan: fingerprint of the plan.
    next_row: first row that no batch has taken.
    step: number of batches taken.
    batches: those batches, as runs of (steps, batch size).
    """

    plan: str
    next_row: int
    step: int
    batches: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        steps = sum(steps for steps, _ in self.batches)
        rows = sum(steps * size for steps, size in self.batches)
        if (steps, rows) != (self.step, self.next_row):
            raise MarinError(
                f"cursor at step {self.step}, row {self.next_row}: its batches are {steps} steps "
                f"and {rows} rows; take the cursor of another checkpoint"
            )

    def to_json(self) -> dict[str, Any]:
        return {
            "plan": self.plan,
            "next_row": self.next_row,
            "step": self.step,
            "batches": [list(run) for run in self.batches],
        }

    @classmethod
    def from_json(cls, value: dict[str, Any] | str) -> "Cursor":
        """Reads the object, or its text.

        Raises:
          MarinError: it is not a cursor.
        """
        try:
            raw = json.loads(value) if isinstance(value, str) else value
            batches = tuple((int(steps), int(size)) for steps, size in raw["batches"])
            return cls(str(raw["plan"]), int(raw["next_row"]), int(raw["step"]), batches)
        except MALFORMED as error:
            raise MarinError(
                f"not a cursor ({type(error).__name__}: {error}): {value!r:.200}"
            ) from None
