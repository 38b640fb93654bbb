"""Rungs from the directories of runs, and from what W&B keeps of the same runs.

The training loss of single steps is noisy and dense; `Rung.curve` averages it over windows. Where
every token is read once it is an evaluation on unseen text.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin.engine.manifest import fingerprint
from marin.errors import MALFORMED, MarinError
from marin.ladder.grid import MODEL_RECIPE, POOLED_RECIPE, Rung, check_names, checked_curve
from marin.ladder.history import Columns, columns
from marin.ladder.wandb_files import read_wandb
from marin.model.count import active_parameters, total_parameters, train_flops_per_token
from marin.train import Curriculum, TrainConfig, load_config
from marin.train.edge import CONFIG_NAME, config_from
from marin.train.metrics import METRICS_NAME, stream_metrics
from marin.train.run_directory import PLAN_NAME, read_plan


def read_run(directory: Path) -> Rung:
    """The rung that a run is; a run in progress is an unfinished rung.

    Raises:
      MarinError: the directory is not a run's, or its metrics cannot be read.
    """
    path = directory / METRICS_NAME
    plan = read_plan(directory / PLAN_NAME)
    config = load_config(directory / CONFIG_NAME)
    name = directory.name if directory.name != "run" else directory.absolute().parent.name
    return _rung(name, config, plan, columns(stream_metrics(path), path), path)


def read_wandb_run(path: Path) -> Rung:
    """The rung that W&B keeps of a run of `marin train`; see `wandb_files.read_wandb`.

    Raises:
      MarinError: the file cannot be read, or its configuration is not of `marin train`.
    """
    run = read_wandb(path)
    values = dict(run.config)
    plan = values.pop("plan", None)
    if not isinstance(plan, dict) or "curriculum" not in plan:
        raise MarinError(f"{path}: no plan in its configuration; expected a run of marin train")
    return _rung(run.name, config_from(values, str(path)), plan, columns(run.history, path), path)


def _rung(
    name: str, config: TrainConfig, plan: Mapping[str, Any], found: Columns, path: Path
) -> Rung:
    try:
        curriculum = Curriculum.from_json(plan["curriculum"])
    except MarinError as error:
        raise MarinError(f"{path}: {error}") from None
    metrics = {
        key: checked_curve(steps, values, f"{path}, {key}", curriculum.steps)
        for key, (steps, values) in found.items()
        if len(steps) > 1
    }
    check_names([name, *metrics], path)
    flops = sum(
        train_flops_per_token(config.model, segment.seq_len) * segment.steps * segment.batch_tokens
        for segment in curriculum.segments
    )
    return Rung(
        name=name,
        active_params=active_parameters(config.model),
        tokens=curriculum.tokens,
        train_flops=flops,
        steps=curriculum.steps,
        metrics=metrics,
        recipe=_recipe(config, curriculum, plan, path),
        figures={"hidden": config.model.hidden, "total_params": total_parameters(config.model)},
    )


def _recipe(
    config: TrainConfig, curriculum: Curriculum, plan: Mapping[str, Any], path: Path
) -> dict[str, Any]:
    """What has to be equal over rungs: everything but size and speed."""
    model = config.model
    fields = MODEL_RECIPE + (POOLED_RECIPE if model.transport == "pooled_wave" else ())
    recipe = {key: getattr(model, key) for key in fields}
    recipe["seq_len"] = sorted({segment.seq_len for segment in curriculum.segments})
    recipe["optimizer"] = config.rate_scale
    recipe["qk_extension"] = config.qk_extension
    recipe["schedule"] = _decay(curriculum)
    if config.evaluation.times:
        recipe["evaluation_tokens"] = config.evaluation.tokens
        recipe["evaluation_seq_len"] = config.evaluation.seq_len or curriculum.segments[0].seq_len
    recipe["tokenizer"] = plan.get("tokenizer")
    try:
        recipe["mixture"] = _mixture(plan.get("schedule", {}))
    except MALFORMED as error:
        raise MarinError(f"{path}: no schedule of a run in it ({error})") from None
    return recipe


def _decay(curriculum: Curriculum) -> str:
    """The learning rate over its peak by progress, in whole percent: a rung's tokens are whole
    batches, so that its warm-up ends a little beside the others'."""
    total = curriculum.tokens
    return ", ".join(f"{fraction:.2f} at {at / total:.0%}" for at, fraction in curriculum.decay)


def _mixture(schedule: Mapping[str, Any]) -> str | None:
    """The name of the newest mixture and a hash of its weights and its phases' shares of the run;
    budgets are size."""
    revisions = schedule.get("revisions")
    if not revisions:
        return None
    specification = revisions[-1]["specification"]
    phases = specification["phases"]
    total = sum(phase["tokens"] for phase in phases)
    content = [
        [phase["name"], round(phase["tokens"] / total, 3), phase["weights"]] for phase in phases
    ]
    return f"{specification['name']}-{fingerprint(content)[:8]}"
