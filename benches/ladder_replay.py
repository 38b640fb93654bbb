"""What the model in use says about the committed small ladders, whose outcomes are known.

    python benches/ladder_replay.py           # writes benches/results/ladder_replay.json

The largest rung of each `benches/results/ladder_small*/grid.json` is forecast from the others. The
registrations beside the grids were made before their outcomes, by the models of their days; these
replays were not, and say how that model's intervals fare on ladders as small as these. Coverage is
that of all evaluations after the burn-in.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from marin.engine import write_json
from marin.ladder import Model, Target, forecast, load_grid
from marin.ladder.answer import number
from marin.ladder.published import interpolate

RESULTS = Path(__file__).parent / "results"
MODEL = Model()


def replay(folder: Path) -> dict[str, Any]:
    grid = load_grid(folder / "grid.json")
    *smaller, last = grid.fitted
    target = Target(last.name, last.train_flops, last.tokens, last.active_params)
    found = forecast(replace(grid, rungs=tuple(smaller)), target, MODEL)
    band = found.band
    progress, values = last.curve(grid.metric)
    low, high = (interpolate((band.progress, edge), progress) for edge in (band.low, band.high))
    judged = progress > MODEL.burn_in + 1e-3
    outcome = float(values[-1])
    return {
        "forecast": number(band.middle[-1]),
        "low": number(band.low[-1]),
        "high": number(band.high[-1]),
        "baseline": number(found.baseline[-1]),
        "outcome": number(outcome),
        "error": number(band.middle[-1] / outcome - 1),
        "baseline_error": number(found.baseline[-1] / outcome - 1),
        "inside": bool(band.low[-1] <= outcome <= band.high[-1]),
        "covered": number(((low <= values) & (values <= high))[judged].mean()),
        "beyond": number(target.train_flops / smaller[-1].train_flops),
    }


def main() -> None:
    ladders = {path.name: replay(path) for path in sorted(RESULTS.glob("ladder_small*"))}
    for name, entry in ladders.items():
        print(name, entry)
    answer = {
        "ladders": ladders,
        "inside": sum(entry["inside"] for entry in ladders.values()),
        "covered": number(float(np.mean([entry["covered"] for entry in ladders.values()]))),
        "mean_absolute_error": number(
            float(np.mean([abs(entry["error"]) for entry in ladders.values()]))
        ),
        "mean_absolute_baseline_error": number(
            float(np.mean([abs(entry["baseline_error"]) for entry in ladders.values()]))
        ),
    }
    write_json(RESULTS / "ladder_replay.json", answer)


if __name__ == "__main__":
    main()
