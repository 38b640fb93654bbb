"""Run directories as training leaves them, without training."""

import json
from pathlib import Path

import numpy as np

from marin.model import HeroConfig
from marin.model.count import active_parameters, train_flops_per_token
from marin.train.config import TrainConfig
from marin.train.curriculum import Curriculum, Segment
from marin.train.edge import write_config
from marin.train.metrics import METRICS_NAME, MetricsLog
from marin.train.run_directory import PLAN_NAME

STEPS = 40


def small_model(hidden: int, **changes: object) -> HeroConfig:
    sizes = {"hidden": hidden, "layers": 1, "heads": hidden // 8, "head_dim": 8}
    sizes |= {"kv_local": 1, "kv_global": 1, "latent": hidden // 2, "expert_width": hidden // 2}
    sizes |= {"experts": 4, "top_k": 2, "vocab": 64, "window": 16, "gate_rank": 4}
    return HeroConfig(**(sizes | {"transport": "local"} | changes))


def evaluation(loss: float) -> dict[str, float]:
    """Every value of one evaluation under the names of `marin.train.evaluation`. The mean over
    domains without drops is `loss`; everything else differs from it."""
    values = {"loss_macro": loss, "loss_micro": loss - 0.02, "bits_per_byte": 0.4 * loss}
    values |= {"loss/c00": loss - 0.3, "loss/c01": loss + 0.3}
    trained = {f"eval/{name}": value + 0.05 for name, value in values.items()}
    dropless = {f"eval/dropless/{name}": value for name, value in values.items()}
    return {**trained, "eval/drop_fraction": 0.01, **dropless}


def write_run(
    path: Path,
    hidden: int,
    *,
    steps: int = STEPS,
    tokenizer: str = "t",
    weights: tuple[float, ...] = (0.5, 0.5),
    **model: object,
) -> Path:
    """A run of 40 steps, trained for `steps` of them, whose losses follow a power law in its FLOPs:
    `1 + C^-0.1` at its end."""
    path.mkdir(parents=True)
    config = TrainConfig(shards=Path("shards"), run=path, model=small_model(hidden, **model))
    write_config(config, path)
    rows = max(1, active_parameters(config.model) // 256)
    curriculum = Curriculum.plan((Segment(STEPS, rows, 32, "main"),), hidden)
    phase = {"name": "main", "tokens": curriculum.tokens}
    phase["weights"] = {f"c00q{i}": weight for i, weight in enumerate(weights)}
    schedule = {"revisions": [{"specification": {"name": "mix", "phases": [phase]}}]}
    plan = {"curriculum": curriculum.to_json(), "schedule": schedule, "tokenizer": tokenizer}
    (path / PLAN_NAME).write_text(json.dumps(plan))
    flops = train_flops_per_token(config.model, 32) * curriculum.tokens
    log = MetricsLog(path / METRICS_NAME)
    for step in range(steps):
        loss = 1 + flops**-0.1 * (1 + 0.5 * (1 - (step + 1) / STEPS))
        record = {"step": step, "loss": loss + 0.01 * np.cos(step), "drop_fraction": 0.0}
        record |= {"total_loss": loss, "z_loss": 0.01, "balance_loss": 0.0, "grad_norm": 0.5}
        if (step + 1) % 2 == 0:
            record |= evaluation(loss)
        log.write(record)
    log.close()
    return path
