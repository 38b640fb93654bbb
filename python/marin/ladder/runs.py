"""Rungs from the directories of runs: `config.toml`, `plan.json` and `metrics.jsonl`.

The training loss of single steps is noisy and dense; `Rung.curve` averages it over windows. Where
every token is read once it is an evaluation on unseen text.
"""

import json
from pathlib import Path
from typing import Any

from marin.errors import MarinError
from marin.ladder.grid import Rung, checked_curve
from marin.ladder.history import columns
from marin.model.count import active_parameters, total_parameters, train_flops_per_token
from marin.train import Curriculum, TrainConfig, load_config, read_metrics
from marin.train.edge import CONFIG_NAME
from marin.train.metrics import METRICS_NAME
from marin.train.run_directory import PLAN_NAME

_MODEL_RECIPE = ("experts", "top_k", "vocab", "transport")


def read_run(directory: Path) -> Rung:
    """The rung that a run is; a run in progress is an unfinished rung.

    Raises:
      MarinError: the directory is not a run's, or its metrics cannot be read.
    """
    config = load_config(directory / CONFIG_NAME)
    plan = _plan(directory / PLAN_NAME)
    curriculum = Curriculum.from_json(plan["curriculum"])
    path = directory / METRICS_NAME
    metrics = {
        name: checked_curve(steps, values, f"{path}, {name}", curriculum.steps)
        for name, (steps, values) in columns(read_metrics(path), path).items()
        if len(steps) > 1
    }
    flops = sum(
        train_flops_per_token(config.model, segment.seq_len) * segment.steps * segment.batch_tokens
        for segment in curriculum.segments
    )
    return Rung(
        name=directory.name if directory.name != "run" else directory.absolute().parent.name,
        active_params=active_parameters(config.model),
        tokens=curriculum.tokens,
        train_flops=flops,
        steps=curriculum.steps,
        metrics=metrics,
        recipe=_recipe(config, curriculum, plan),
        figures={"hidden": config.model.hidden, "total_params": total_parameters(config.model)},
    )


def _plan(path: Path) -> dict[str, Any]:
    try:
        plan = json.loads(path.read_text())
    except OSError as error:
        raise MarinError(f"{path}: {error.strerror}; expected the directory of a run") from None
    except ValueError as error:
        raise MarinError(f"{path}: no JSON ({error})") from None
    if not isinstance(plan, dict) or "curriculum" not in plan:
        raise MarinError(f"{path}: no curriculum in it; expected the plan of a run")
    return plan


def _recipe(config: TrainConfig, curriculum: Curriculum, plan: dict[str, Any]) -> dict[str, Any]:
    """What has to be equal over rungs: everything but size."""
    recipe = {key: getattr(config.model, key) for key in _MODEL_RECIPE}
    recipe["seq_len"] = sorted({segment.seq_len for segment in curriculum.segments})
    recipe["optimizer"] = config.rate_scale
    data = plan.get("data", {})
    recipe["tokenizer"] = data.get("tokenizer")
    recipe["mixture"] = data.get("schedule", {}).get("specification", {}).get("name")
    return recipe
