"""The schedule of a run: which rows, of which length, in which batches, in which phase.

A schedule is a specification with a horizon in tokens and stages of row lengths. Phases and stages
begin at fractions of the horizon, each at the batch boundary nearest to it. Revisions change the
horizon, the mixture or the stages from a step on; what was consumed before it stays, and the
revision stands in the JSON, so that the whole history can be rebuilt from it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from marin.engine.files import read_json
from marin.engine.manifest import fingerprint
from marin.errors import MALFORMED, MarinError
from marin.mixture.exhaustion import check_exposure, check_policy
from marin.mixture.order import Order
from marin.mixture.quotas import quota_phases
from marin.mixture.runs import Revision, RowStage, Run, Stage, cut_runs, merge_stages, plan_runs
from marin.mixture.specification import Specification
from marin.validation import is_count

FORMAT_VERSION = 1
DEFAULT_BATCH_TOKENS = 11264 * 4096
"""Of `marin mix`: the batches of the published runs."""

MAX_ROWS = 1 << 62


@dataclass(frozen=True)
class Schedule:
    """A run. `revisions[0]` begins at step 0.

    `exhaustion` says what happens to a cell whose tokens are used up to the cap, judged over all
    phases: `error`, `repeat` (it goes on), or `drop-and-renormalize` (its weight becomes 0 and the
    other cells share it). With `simulated_horizon` (tokens of a longer run) each cell shows only
    the share of its documents that gives this run, as first planned, the longer one's repetition.

    Raises:
      MarinError: on construction, if the parts do not fit together.
    """

    revisions: tuple[Revision, ...]
    seed: int = 0
    exhaustion: str = "error"
    simulated_horizon: int | None = None

    def __post_init__(self) -> None:
        check_policy(self.exhaustion)
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise MarinError(f"seed {self.seed!r:.40}, expected a number from 0 to 2^64 - 1")
        steps = [revision.step for revision in self.revisions]
        if not steps or steps[0] != 0 or any(a >= b for a, b in pairwise(steps)):
            raise MarinError(f"revisions at steps {steps}, expected increasing steps from 0")
        longest = max(revision.horizon for revision in self.revisions)
        simulated = self.simulated_horizon
        if simulated is not None and not (is_count(simulated) and simulated >= longest):
            raise MarinError(
                f"simulated horizon {simulated!r:.40}, expected at least this run's "
                f"{longest} tokens"
            )
        if self.rows > MAX_ROWS:
            raise MarinError(f"a run of {self.rows} rows, more than 2^62; use longer rows")
        check_exposure(self)

    @classmethod
    def of(
        cls,
        specification: Specification,
        stages: Sequence[Stage],
        *,
        horizon: int | None = None,
        seed: int = 0,
        exhaustion: str = "error",
        simulated_horizon: int | None = None,
    ) -> "Schedule":
        """A schedule without history; `horizon` in tokens, by default the published budget."""
        tokens = specification.tokens if horizon is None else horizon
        revision = Revision(0, specification, tokens, tuple(stages))
        return cls((revision,), seed, exhaustion, simulated_horizon)

    def revision_at(self, step: int) -> Revision:
        """What holds from `step` on unless it is revised."""
        return max(
            (revision for revision in self.revisions if revision.step <= max(step, 0)),
            key=lambda revision: revision.step,
        )

    def revised(
        self,
        step: int,
        *,
        horizon: int | None = None,
        specification: Specification | None = None,
        stages: Sequence[Stage] | None = None,
    ) -> "Schedule":
        """The same run up to `step`, and from there on with what is given instead; the rest stays
        as it is at `step`. Revisions of later steps, and one of `step` itself, are replaced.

        Raises:
          MarinError: `step` lies past the end, or the new horizon is shorter than what was
            consumed.
        """
        now = self.revision_at(step)
        revision = Revision(
            step=step,
            specification=specification or now.specification,
            horizon=now.horizon if horizon is None else horizon,
            stages=tuple(stages) if stages is not None else now.stages,
        )
        earlier = (revision for revision in self.revisions if revision.step < step)
        return replace(self, revisions=(*earlier, revision))

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Stretches of constant phase, row length and batch size, each of whole batches."""
        return self._history[0]

    @cached_property
    def planned(self) -> tuple[tuple[Run, ...], ...]:
        """What each revision planned up to its own horizon, the next one left out of account."""
        return self._history[1]

    @cached_property
    def _history(self) -> tuple[tuple[Run, ...], tuple[tuple[Run, ...], ...]]:
        runs: tuple[Run, ...] = ()
        planned = []
        for number, revision in enumerate(self.revisions):
            steps = runs[-1].end_step if runs else 0
            if revision.step > steps:
                raise MarinError(f"a revision at step {revision.step} of a run of {steps} steps")
            runs = cut_runs(runs, revision.step)
            row = runs[-1].end_row if runs else 0
            tokens = sum(run.tokens for run in runs)
            planned.append(plan_runs(number, revision, revision.step, row, tokens))
            runs += planned[-1]
        if not runs:
            stage = self.revisions[-1].stages[0]
            raise MarinError(
                f"a horizon of {self.horizon:,} tokens is shorter than half a batch of "
                f"{stage.batch_size * stage.seq_len:,} tokens; take smaller batches "
                f"(--batch-tokens, {DEFAULT_BATCH_TOKENS:,} by default) or a longer --horizon"
            )
        return runs, tuple(planned)

    @cached_property
    def row_stages(self) -> tuple[RowStage, ...]:
        """Stretches of one row length: what `stage` numbers in `Order.rows`."""
        return merge_stages(self.runs)

    @cached_property
    def cells(self) -> tuple[str, ...]:
        """The numbering of cells: those of the first specification in sorted order, then those
        that later ones add."""
        names: dict[str, None] = {}
        for revision in self.revisions:
            names.update(dict.fromkeys(revision.specification.cells))
        return tuple(names)

    @property
    def horizon(self) -> int:
        """Planned tokens; `tokens` is what whole batches make of it."""
        return self.revisions[-1].horizon

    @property
    def steps(self) -> int:
        return self.runs[-1].end_step

    @property
    def rows(self) -> int:
        return self.runs[-1].end_row

    @property
    def tokens(self) -> int:
        return sum(run.tokens for run in self.runs)

    @property
    def share(self) -> Fraction:
        """The part of each cell's documents that the run sees.

        It is that of the first revision: the share decides which documents come first, so another
        one would take back what a run consumed before its horizon changed.
        """
        horizon = self.revisions[0].horizon
        return Fraction(horizon, self.simulated_horizon or horizon)

    @cached_property
    def order(self) -> Order:
        """The exact order of the rows. Building it takes a fraction of a second."""
        return Order(
            cells=self.cells,
            plans=quota_phases(self),
            stages=[stage.first_row for stage in self.row_stages],
            runs=[(run.first_row, run.batch_size) for run in self.runs],
            seed=self.seed,
        )

    def run_at(self, step: int) -> Run:
        """The run that holds `step`."""
        for run in self.runs:
            if run.first_step <= step < run.end_step:
                return run
        raise MarinError(f"step {step} of a run of {self.steps} steps")

    def row_at(self, step: int) -> int:
        """The first row of `step`; the end of the run is a step, too."""
        if step == self.steps:
            return self.rows
        run = self.run_at(step)
        return run.first_row + (step - run.first_step) * run.batch_size

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits over everything that decides the order; not over names and notes."""
        value = self.to_json()
        for entry, revision in zip(value["revisions"], self.revisions, strict=True):
            entry["specification"] = revision.specification.fingerprint
        return fingerprint(value)

    def to_json(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "seed": self.seed,
            "exhaustion": self.exhaustion,
            "simulated_horizon": self.simulated_horizon,
            "revisions": [revision.to_json() for revision in self.revisions],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Schedule":
        """Raises `MarinError` if `value` is not what `to_json` writes."""
        if not isinstance(value, Mapping):
            raise MarinError(f"a {type(value).__name__}, expected a schedule of marin mix plan")
        if "phases" in value and "revisions" not in value:
            raise MarinError(
                "a mixture, expected a schedule; marin mix plan MIXTURE --out FILE makes one of it"
            )
        if value.get("format_version") != FORMAT_VERSION:
            raise MarinError(
                f"schedule of format version {value.get('format_version')}, expected "
                f"{FORMAT_VERSION}; plan it again with this version of marin"
            )
        try:
            return cls(
                revisions=tuple(Revision.from_json(entry) for entry in value["revisions"]),
                seed=value["seed"],
                exhaustion=value["exhaustion"],
                simulated_horizon=value["simulated_horizon"],
            )
        except MALFORMED as error:
            raise MarinError(f"not a schedule: {type(error).__name__} {error}") from None


def load_schedule(path: Path) -> Schedule:
    """Reads what `marin mix plan` wrote.

    Raises:
      MarinError: the file cannot be read or is no schedule.
    """
    value = read_json(path, "a schedule of marin mix plan")
    try:
        return Schedule.from_json(value)
    except MarinError as error:
        raise MarinError(f"{path}: {error}") from None
