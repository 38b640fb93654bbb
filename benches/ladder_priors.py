"""How the priors of the rungs' noise and of the floor were chosen.

    python benches/ladder_priors.py           # writes benches/results/ladder_priors.json

Wider priors make intervals that hold the truth more often and say less. Each candidate is judged by
the backtests on the published grid and by synthetic ladders with floors from all of the admitted
range (`ladder_coverage.py`, other draws than those that it reports). The small ladders of
`ladder_replay.py` take no part. Of the candidates that hold about 90 % of the truths in every
quarter of the floors, the one with the least error in the backtests is taken.
"""

import importlib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ladder import GRID
from ladder_coverage import NOISE, by_floor, draw, summary

from marin.engine import write_json
from marin.ladder import Model, backtests, find_target, forecast, load_grid, summarize
from marin.ladder.backtest import CHOOSING
from marin.ladder.joint import LOSS

RESULTS = Path(__file__).parent / "results" / "ladder_priors.json"
SEEDS = range(1000, 1060)
KINDS = ("rungs", "both")
# Beta prior of the floor; centre and spread of the whole rungs' noise.
CANDIDATES = (
    ((6.0, 4.0), 0.002, 0.6),  # in use until these were compared
    ((3.0, 2.0), 0.002, 0.6),
    ((6.0, 4.0), 0.003, 0.8),
    ((3.0, 2.0), 0.0025, 0.7),
    ((3.0, 2.0), 0.003, 0.8),
    ((2.0, 1.5), 0.003, 0.8),
    ((1.0, 1.0), 0.003, 0.8),
)


def judge(floor: tuple[float, float], centre: float, spread: float) -> dict[str, Any]:
    scales = replace(
        LOSS, floor=floor, noise=(centre, *LOSS.noise[1:]),
        noise_spread=(spread, *LOSS.noise_spread[1:]),
    )  # fmt: skip
    # The priors of losses are a constant of the module that forecasts; this is the only place that
    # asks for others.
    importlib.import_module("marin.ladder.forecast").LOSS = scales
    grid = load_grid(GRID)
    chosen = summarize(backtests(grid, Model(), CHOOSING))
    assert chosen is not None
    band = forecast(grid, find_target(grid, "d6144"), Model()).band
    coverage = {}
    for kind in KINDS:
        draws = [draw(seed, *NOISE[kind], any_floor=True) for seed in SEEDS]
        coverage[kind] = summary(draws) | {"by_floor": by_floor(draws)}
    return {
        "floor": floor,
        "rung_noise": {"centre": centre, "spread": spread},
        "backtests": {key: round(value, 6) for key, value in asdict(chosen).items()},
        "published_target": [round(float(x[-1]), 4) for x in (band.low, band.middle, band.high)],
        "coverage": coverage,
    }


def main() -> None:
    table = []
    for candidate in CANDIDATES:
        found = judge(*candidate)
        quarters = {
            kind: [f"{part['inside']}/{part['draws']}" for part in coverage["by_floor"].values()]
            for kind, coverage in found["coverage"].items()
        }
        print(candidate, found["backtests"], found["published_target"], quarters, flush=True)
        table.append(found)
    write_json(RESULTS, table)


if __name__ == "__main__":
    main()
