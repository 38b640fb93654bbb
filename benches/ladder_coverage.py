"""How often the 90 % interval of a forecast holds a known truth, 300 times beyond the largest rung.

    python benches/ladder_coverage.py         # writes benches/results/ladder_coverage.json

Synthetic ladders `floor + scale(p) C^-exponent` of five rungs over a factor of 170 in compute, 100
draws for each kind of noise of 0.3 % of the value: one deviation per rung, one per evaluation, or
both. Floor and exponent are drawn too. Fails below 85 of 100.
"""

from pathlib import Path
from typing import Any

import numpy as np

from marin.engine import write_json
from marin.ladder import Model, Rung, Target, build_ladder, fit_law, forecast

RESULTS = Path(__file__).parent / "results" / "ladder_coverage.json"
DRAWS, RUNGS, POINTS, SPAN, BEYOND = 100, 5, 8, 170.0, 300.0
NOISE = {"rungs": (0.003, 0.0), "evaluations": (0.0, 0.003), "both": (0.0021, 0.0021)}
STEPS = 10_000


def draw(seed: int, by_rung: float, by_evaluation: float) -> tuple[bool, float, float]:
    """Whether the truth lies in the interval, the interval's relative width, and the relative
    error of its middle."""
    random = np.random.default_rng(seed)
    floor, exponent = random.uniform(1.0, 2.0), random.uniform(0.05, 0.15)
    progress = np.arange(1, POINTS + 1) / POINTS
    shape = 1.5 * (1 + 0.35 * (1 - progress) + 0.02 / progress)
    compute = SPAN ** (np.arange(RUNGS) / (RUNGS - 1))
    steps = tuple(progress * STEPS - 1)
    rungs = []
    for index, relative in enumerate(compute):
        values = floor + shape * relative**-exponent
        values *= 1 + by_rung * random.normal() + by_evaluation * random.normal(size=POINTS)
        flops = 5e19 * relative
        params = (flops / 6 / 791) ** 0.5
        rungs.append(
            Rung(
                f"r{index}", params, 791 * params, flops, STEPS,
                {"loss": (steps, tuple(values.tolist()))},
            )
        )  # fmt: skip
    flops = 5e19 * SPAN * BEYOND
    params = (flops / 6 / 791) ** 0.5
    target = Target("target", flops, 791 * params, params)
    band = forecast(build_ladder(rungs, "loss", "synthetic"), target, Model()).band
    truth = floor + float(shape[-1]) * (SPAN * BEYOND) ** -exponent
    low, middle, high = float(band.low[-1]), float(band.middle[-1]), float(band.high[-1])
    return low <= truth <= high, (high - low) / truth, middle / truth - 1


def exponents() -> float:
    """The largest error of a fitted exponent on noise-free ladders over a grid of truths."""
    worst = 0.0
    for floor in (0.0, 0.5, 1.0, 1.5, 2.0, 2.5):
        for exponent in (0.04, 0.09, 0.2, 0.5):
            for count in (3, 5, 7):
                compute = 1e3 ** (np.arange(count) / (count - 1))
                rungs = [
                    Rung(
                        f"r{i}", c, c, c, 10, {"loss": ((9.0,), (float(floor + 2 * c**-exponent),))}
                    )
                    for i, c in enumerate(compute)
                ]
                law = fit_law(build_ladder(rungs, "loss", "exact"), floor=None)
                worst = max(worst, float(np.abs(law.exponent - exponent).max()))
    return worst


def main() -> None:
    found: dict[str, Any] = {"largest_error_of_an_exponent_without_noise": exponents()}
    for name, noise in NOISE.items():
        draws = [draw(seed, *noise) for seed in range(DRAWS)]
        found[name] = {
            "draws": DRAWS,
            "inside": sum(inside for inside, _, _ in draws),
            "median_relative_width": float(np.median([width for _, width, _ in draws])),
            "median_relative_error": float(np.median([abs(error) for *_, error in draws])),
        }
        print(name, found[name], flush=True)
    write_json(RESULTS, found)
    assert found["largest_error_of_an_exponent_without_noise"] < 1e-3, found
    assert all(found[name]["inside"] >= 85 for name in NOISE)


if __name__ == "__main__":
    main()
