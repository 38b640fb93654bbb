"""A real small ladder: three rungs, a registered forecast, and the fourth rung that judges it.

    python -m marin.pipelines.ladder_small STORE OUT [SEED]

STORE is a finished token store, such as `marin quickstart` leaves below `stages/store-*`. The rungs
have about 0.06, 0.13, 0.36 and 0.52 M active parameters and see the same tokens per active
parameter, of the same cells in the same shares; width alone changes. The largest is forecast and
registered from the other three before its first step. Killed at any point, the same command goes on
from there; the registration is never written twice.

Ladders before the last were forecast 2, 6, 4 and 3 % off, by a model with narrower priors;
depth and batch rose between rungs of two of them, and the rates of three were far too low.
`benches/results/README.md` has the figures.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marin import mixture, packing, train
from marin.engine import Progress, Silent, read_manifest, write_json
from marin.ladder import Model, Target, build_ladder, fit_law, forecast_answer
from marin.ladder.page import ladder_page
from marin.ladder.register import read_registration, register
from marin.ladder.runs import read_run
from marin.ladder.watch import watch
from marin.model import HeroConfig
from marin.model.count import active_parameters, train_flops_per_token

TOKENS_PER_PARAMETER = 4.0  # active ones
RATE_SCALE = 3.0
"""Times the compute-scaled rates, which are fitted to runs of 10^10 tokens and more; of 1, 3 and 6
the best for the rungs of 64 and of 128."""
TOLERANCE = 0.02
METRIC = "eval/dropless/loss_macro"
EVALUATION_TOKENS = 2_048
"""Of each domain: an evaluation shall cost little beside the steps of the smallest rung."""
SEQ_LEN = 256
_HEAD_DIM = 16
_HIDDEN = (64, 96, 160, 192)
_LAYERS = 2
_BATCH_TOKENS = 1_024


@dataclass(frozen=True)
class SmallRung:
    """One rung: its model and its horizon, a whole number of batches."""

    model: HeroConfig
    steps: int

    @property
    def name(self) -> str:
        return f"d{self.model.hidden}"

    @property
    def tokens(self) -> int:
        return _BATCH_TOKENS * self.steps


def small_rungs(vocab: int) -> tuple[SmallRung, ...]:
    """The four rungs over a vocabulary, smallest first."""
    rungs = []
    for hidden in _HIDDEN:
        heads = hidden // _HEAD_DIM
        model = HeroConfig(
            hidden=hidden,
            layers=_LAYERS,
            heads=heads,
            head_dim=_HEAD_DIM,
            kv_local=heads // 2,
            kv_global=heads // 2,
            latent=hidden // 2,
            expert_width=hidden // 2,
            experts=8,
            top_k=2,
            shared_experts=1,
            vocab=vocab,
            window=128,
            gate_rank=16,
            transport="local",
            remat="none",
        )
        steps = round(TOKENS_PER_PARAMETER * active_parameters(model) / _BATCH_TOKENS)
        rungs.append(SmallRung(model, steps))
    return tuple(rungs)


def run(store: Path, out: Path, *, seed: int = 0, progress: Progress = Silent()) -> dict[str, Any]:
    """Trains the ladder and returns what was forecast, what came out, and the relative error."""
    out.mkdir(parents=True, exist_ok=True)
    rungs = small_rungs(read_manifest(store).summary["tokenizer"]["vocab_size"])
    *smaller, largest = rungs
    runs = [_train(rung, store, out, seed, progress) for rung in smaller]
    ladder = build_ladder([read_run(path) for path in runs], METRIC, "small ladder")
    target = Target(
        largest.name,
        train_flops_per_token(largest.model, SEQ_LEN) * largest.tokens,
        largest.tokens,
        active_parameters(largest.model),
    )
    registration = out / "registration.md"
    if not registration.exists():
        register(ladder, target, Model(), runs, registration, tolerance=TOLERANCE)
    block = read_registration(registration)
    last = read_run(_train(largest, store, out, seed, progress))
    outcome = watch(last, block)
    law = fit_law(ladder, floor=None, burn_in=block["rule"]["burn_in"])
    ladder_page(ladder, law, forecast_answer(ladder, target, Model()), outcome).write(
        out / "ladder.html"
    )
    write_json(out / "outcome.json", outcome)
    write_json(
        out / "grid.json", {"rungs": [rung.to_json(METRIC) for rung in (*ladder.rungs, last)]}
    )
    return outcome


def _train(rung: SmallRung, store: Path, out: Path, seed: int, progress: Progress) -> Path:
    """Packs the rung's rows and trains it; returns its run directory."""
    stages = out / "stages"
    plan = packing.plan(store, _schedule(rung, store, seed), stages, progress=progress)
    shards = packing.pack(plan, stages, progress=progress)
    directory = out / rung.name
    config = train.TrainConfig(
        shards=shards,
        run=directory,
        model=rung.model,
        seed=seed,
        rate_scale=RATE_SCALE,
        evaluation=train.EvaluationConfig(times=20, tokens=EVALUATION_TOKENS),
        log=train.LogConfig(project="marin-ladder"),
    )
    train.run(config, progress=progress)
    return directory


def _schedule(rung: SmallRung, store: Path, seed: int) -> mixture.Schedule:
    """The quickstart's two phases: natural shares, then better text from 80 % of the run."""
    manifest = read_manifest(store)
    available = {name: cell["tokens"] for name, cell in manifest.summary["cells"].items()}
    switch = rung.tokens * 4 // 5
    specification = mixture.tilted(
        "small-ladder",
        available,
        [("main", switch, 1.0), ("anneal", rung.tokens - switch, 2.0)],
        store=manifest.fingerprint,
    )
    stages = mixture.constant_batches(_BATCH_TOKENS, [(0.0, SEQ_LEN)])
    return mixture.Schedule.of(specification, stages, seed=seed, exhaustion="repeat")


if __name__ == "__main__":
    print(run(Path(sys.argv[1]), Path(sys.argv[2]), seed=int((*sys.argv, "0")[3])))
