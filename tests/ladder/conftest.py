"""Ladders with a known truth."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import marin.ladder
from marin.ladder import Ladder, Rung, Target, build_ladder, load_grid

PUBLISHED = Path(marin.ladder.__file__).parent / "presets" / "published.json"


@dataclass(frozen=True)
class Truth:
    """`floor + scale(p) (C / smallest C)^-exponent`, with noise relative to the value."""

    floor: float = 1.5
    ends: float | None = None  # the value that the largest rung ends with; else the scale is fixed
    exponent: float = 0.09
    rungs: int = 4
    span: float = 170.0  # compute of the largest rung over the smallest's
    beyond: float = 300.0  # compute of the target over the largest rung's
    points: int = 8  # evaluations per rung
    rung_noise: float = 0.0
    noise: float = 0.0

    def ladder(self, seed: int = 0) -> tuple[Ladder, Target, float]:
        """The ladder, a target beyond it, and the target's true last value."""
        random = np.random.default_rng(seed)
        compute = 5e19 * self.span ** (np.arange(self.rungs) / (self.rungs - 1))
        progress = np.arange(1, self.points + 1) / self.points
        rungs = []
        for index, flops in enumerate(compute):
            luck = (
                1 + self.rung_noise * random.normal() + self.noise * random.normal(size=self.points)
            )
            steps = tuple(np.round(progress * 10_000) - 1)
            values = tuple(self.values(flops / compute[0], progress) * luck)
            params = float(np.sqrt(flops / 6 / 791))
            rungs.append(
                Rung(f"r{index}", params, 791 * params, flops, 10_000, {"loss": (steps, values)})
            )
        flops = float(compute[-1] * self.beyond)
        params = float(np.sqrt(flops / 6 / 791))
        target = Target("target", flops, 791 * params, params)
        truth = float(self.values(flops / compute[0], np.ones(1))[0])
        return build_ladder(rungs, "loss", "synthetic"), target, truth

    def values(self, compute: float, progress: np.ndarray) -> np.ndarray:
        height = 1.5 if self.ends is None else (self.ends - self.floor) * self.span**self.exponent
        scale = height * (1 + 0.35 * (1 - progress) + 0.02 / progress)
        return self.floor + scale * compute**-self.exponent


@pytest.fixture(scope="session")
def published() -> Ladder:
    return load_grid(PUBLISHED)


@pytest.fixture
def published_path() -> Path:
    return PUBLISHED


@pytest.fixture(scope="session")
def truth() -> Callable[..., Truth]:
    return Truth
