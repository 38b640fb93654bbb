"""How the ladder's model was chosen, by backtests on the published grid and nothing else.

    python benches/ladder.py          # the table, and benches/results/ladder_selection.json

Candidates are all combinations of measure of compute, burn-in, floor (published or integrated over)
and whether the exponent may change along a run. The best by mean absolute error over both choosing
protocols wins. Four rungs are few for 24 candidates, so the file also says what honest users of
half of the evidence would have got: the winner by one protocol, judged by the other.
"""

import json
from dataclasses import asdict
from itertools import product
from pathlib import Path
from typing import Any

import marin.ladder
from marin.engine import write_json
from marin.ladder import Model, backtests, load_grid, summarize
from marin.ladder.backtest import CHOOSING, LARGEST, LATER_HALF

GRID = Path(marin.ladder.__file__).parent / "presets" / "published.json"
RESULTS = Path(__file__).parent / "results" / "ladder_selection.json"


def candidates() -> list[Model]:
    return [
        Model(measure=measure, burn_in=burn_in, exponent_varies=varies, floor=floor)
        for measure, burn_in, varies, floor in product(
            ("flops", "parameters_tokens"), (0.0, 0.1, 0.2), (True, False), (None, 1.5)
        )
    ]


def judge(model: Model) -> dict[str, Any]:
    tests = backtests(load_grid(GRID), model, CHOOSING)
    scores = {}
    for name, protocols in (("all", CHOOSING), (LARGEST, (LARGEST,)), (LATER_HALF, (LATER_HALF,))):
        summary = summarize(tests, protocols)
        assert summary is not None
        scores[name] = {key: round(value, 6) for key, value in asdict(summary).items()}
    return {"model": asdict(model), "scores": scores}


def main() -> None:
    table = sorted(map(judge, candidates()), key=lambda entry: entry["scores"]["all"]["error"])
    for entry in table:
        scores = entry["scores"]
        print(
            *(f"{1000 * scores[key]['error']:6.2f}" for key in ("all", LARGEST, LATER_HALF)),
            f"{scores['all']['covered']:.2f}", json.dumps(entry["model"]),
        )  # fmt: skip
    crossed = {
        f"chosen by {by}, judged by {on}": {
            **(chosen := min(table, key=lambda entry: entry["scores"][by]["error"]))["scores"][on],
            "model": chosen["model"],
        }
        for by, on in ((LARGEST, LATER_HALF), (LATER_HALF, LARGEST))
    }
    RESULTS.parent.mkdir(exist_ok=True)
    write_json(RESULTS, {"chosen": table[0], "crossed": crossed, "candidates": table})


if __name__ == "__main__":
    main()
