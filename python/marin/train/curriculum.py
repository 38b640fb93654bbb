"""Everything that changes during a run, as one function of the tokens seen.

Learning rates, row length with its QK scale, batch size and mixture phase are all read from the
tokens at which a step starts or ends, so they stay aligned when the horizon or the batch changes.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from math import log, prod
from operator import itemgetter
from typing import Any

from marin.errors import MALFORMED, MarinError
from marin.train.rates import FLOOR_FRACTION, WARMUP_FRACTION, Rates, compute_scaled_rates
from marin.validation import is_count, is_finite

QK_EXTENSION = 0.1  # X of `mscale = 1 + X ln(new / old)` at each extension of the row length


@dataclass(frozen=True)
class Segment:
    """`steps` batches of `batch_size` rows of `seq_len` tokens, all in one mixture phase."""

    steps: int
    batch_size: int
    seq_len: int
    phase: str

    @property
    def batch_tokens(self) -> int:
        return self.batch_size * self.seq_len

    @property
    def shape(self) -> tuple[int, int]:
        """Rows of a batch and their length: what a step is compiled for."""
        return self.batch_size, self.seq_len


@dataclass(frozen=True)
class StepPlan:
    """One step: the data it reads and the constants it runs with.

    `tokens` counts positions, padding included, before the step; `first_row` is its first global
    row.
    """

    step: int
    tokens: int
    first_row: int
    segment: Segment
    rates: Rates
    qk_scale: float

    @property
    def tokens_after(self) -> int:
        return self.tokens + self.segment.batch_tokens


@dataclass(frozen=True)
class Curriculum:
    """The plan of a run from its first step to its last.

    `decay` is the learning rate as fraction of its peak: (tokens, fraction) pairs, linear between
    them. The peak follows from `rate_tokens` (the tokens the run was first planned for, so that a
    shortened run keeps its peak), `hidden` and the batch at hand, times `rate_scale`.
    """

    segments: tuple[Segment, ...]
    decay: tuple[tuple[int, float], ...]
    rate_tokens: int
    hidden: int
    rate_scale: float = 1.0
    qk_extension: float = QK_EXTENSION

    @classmethod
    def plan(
        cls,
        segments: Sequence[Segment],
        hidden: int,
        *,
        rate_scale: float = 1.0,
        qk_extension: float = QK_EXTENSION,
    ) -> "Curriculum":
        """A fresh run: 1 % warm-up, then linear decay to 5 % of the peak at the last token."""
        total = sum(segment.steps * segment.batch_tokens for segment in segments)
        decay = ((0, 0.0), (max(1, round(WARMUP_FRACTION * total)), 1.0), (total, FLOOR_FRACTION))
        return cls(tuple(segments), decay, total, hidden, rate_scale, qk_extension)

    def revised(self, step: int, segments: Sequence[Segment]) -> "Curriculum":
        """The same up to `step`; from there the segments of a new plan.

        Where the end stays, so does the learning rate. Otherwise it decays in a line from what it
        is now to the floor at the new end. A warm-up goes on to where it was to end, or half way to
        the new end if that comes sooner, and the line begins there.

        Raises:
          ValueError: the new segments do not begin with the steps that were trained.
        """
        seen = self.at(step).tokens if step < self.steps else self.tokens
        changed = replace(self, segments=tuple(segments))
        if changed.shapes_before(step) != self.shapes_before(step):
            raise ValueError(f"the new segments differ from the old ones before step {step}")
        if changed.tokens == self.tokens:
            return changed
        warm = next((tokens for tokens, fraction in self.decay if fraction == 1.0), 0)
        turn = max(seen, min(warm, (seen + changed.tokens) // 2))
        past = tuple(point for point in self.decay if point[0] < turn)
        line = ((turn, self.rate_fraction(turn)), (changed.tokens, FLOOR_FRACTION))
        return replace(changed, decay=past + line)

    @property
    def steps(self) -> int:
        return self._first_steps[-1]

    @property
    def tokens(self) -> int:
        """Positions of the whole run, padding included."""
        return self._first_tokens[-1]

    def at(self, step: int) -> StepPlan:
        """The plan of a step, found in time logarithmic in the number of segments."""
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of a curriculum of {self.steps} steps")
        index = bisect_right(self._first_steps, step) - 1
        segment = self.segments[index]
        inside = step - self._first_steps[index]
        tokens = self._first_tokens[index] + inside * segment.batch_tokens
        peak = compute_scaled_rates(self.rate_tokens, self.hidden, segment.batch_tokens)
        # The rate is read at the step's end: the first step moves, and the last ends on the floor.
        scale = self.rate_scale * self.rate_fraction(tokens + segment.batch_tokens)
        rates = Rates(peak.muonh * scale, peak.adam * scale, peak.beta2, peak.eps)
        return StepPlan(
            step=step,
            tokens=tokens,
            first_row=self._first_rows[index] + inside * segment.batch_size,
            segment=segment,
            rates=rates,
            qk_scale=self.qk_scale(index),
        )

    def segments_of(self, steps: range) -> tuple[Segment, ...]:
        """The segments that hold any of these consecutive steps."""
        spans = zip(pairwise(self._first_steps), self.segments, strict=True)
        return tuple(
            segment for (first, end), segment in spans if first < steps.stop and end > steps.start
        )

    def shapes_before(self, step: int) -> list[tuple[int, int, int]]:
        """Runs of (steps, batch size, row length) that lead to `step`, neighbours joined."""
        runs: list[tuple[int, int, int]] = []
        for first, segment in zip(self._first_steps, self.segments, strict=False):
            count = min(segment.steps, step - first)
            if count <= 0:
                break
            if runs and runs[-1][1:] == segment.shape:
                count += runs.pop()[0]
            runs.append((count, *segment.shape))
        return runs

    def batches_before(self, step: int) -> list[tuple[int, int]]:
        """Runs of (steps, batch size) that lead to `step`: the history a cursor keeps."""
        by_size = groupby(self.shapes_before(step), key=itemgetter(1))
        return [(sum(count for count, *_ in runs), size) for size, runs in by_size]

    def rate_fraction(self, tokens: int) -> float:
        """Learning rate over its peak once `tokens` have been seen."""
        index = bisect_right([at for at, _ in self.decay], tokens) - 1
        if index + 1 == len(self.decay):
            return self.decay[-1][1]
        (start, low), (end, high) = self.decay[index : index + 2]
        return low + (high - low) * (tokens - start) / (end - start)

    def qk_scale(self, index: int) -> float:
        """Product of `1 + X ln(new / old)` over the extensions up to segment `index`.

        An extension goes beyond the longest rows so far (`old`). Rows that are shorter than those
        keep the scale that their weights were trained with.
        """
        longest = accumulate((segment.seq_len for segment in self.segments[: index + 1]), max)
        return prod(1 + self.qk_extension * log(new / old) for old, new in pairwise(longest))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Curriculum":
        """Raises `MarinError` if `value` is not what `to_json` writes."""
        try:
            segments = tuple(Segment(**segment) for segment in value["segments"])
            decay = tuple((int(tokens), float(fraction)) for tokens, fraction in value["decay"])
            made = cls(**{**value, "segments": segments, "decay": decay})
            sizes = [size for s in segments for size in (s.steps, s.batch_size, s.seq_len)]
            factors = [
                made.rate_scale,
                made.qk_extension,
                *(number for at in decay for number in at),
            ]
            whole = all(map(is_count, (*sizes, made.rate_tokens, made.hidden)))
            if not (whole and all(sizes) and all(map(is_finite, factors)) and segments and decay):
                raise ValueError("a number is missing or of another kind")
        except MALFORMED as error:
            raise MarinError(f"not a curriculum: {type(error).__name__} {error}") from None
        return made

    @cached_property
    def _first_steps(self) -> list[int]:
        return [0, *accumulate(segment.steps for segment in self.segments)]

    @cached_property
    def _first_tokens(self) -> list[int]:
        return [0, *accumulate(segment.steps * segment.batch_tokens for segment in self.segments)]

    @cached_property
    def _first_rows(self) -> list[int]:
        return [0, *accumulate(segment.steps * segment.batch_size for segment in self.segments)]
