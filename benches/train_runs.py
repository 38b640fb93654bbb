"""Whole runs on real text that have to agree: over processes, restarts, meshes and kills.

    python benches/train_runs.py STORE OUT [PART ...]

STORE is a finished token store, such as `marin quickstart` leaves below `stages/store-*`; OUT is
scratch. Every training process is a `marin train` of its own. Writes
`benches/results/train_runs.json`; fails if a bound is broken.

- processes: 300 steps of `tiny` over 8 virtual devices and over 2 processes of 4, with a transport
  that drops nothing.
- preset_processes: the same with the preset's own transport, which drops.
- devices: 10 steps and 10 more against 20 straight, to the last bit; and the next 10 losses on 1,
  2 and 4 devices with a transport that drops nothing.
- kills: SIGKILL at 20 random moments, half of them inside a save.
- wandb: step time beside a W&B server that takes connections and never answers.
"""

import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from marin import mixture, packing
from marin.bench.machine import describe_machine
from marin.engine import read_manifest, write_json
from marin.model import preset
from marin.train import CheckpointConfig, EvaluationConfig, LogConfig, MeshShape, TrainConfig
from marin.train.checkpoint import complete_steps, read_state
from marin.train.edge import write_config
from marin.train.metrics import read_metrics

RESULTS = Path(__file__).parent / "results" / "train_runs.json"
ROWS, SEQ_LEN, STEPS = 16, 128, 300
KILLS, KILL_STEPS = 20, 120
DROPLESS = {"transport": "ring"}


def main() -> None:
    store, out, *chosen = sys.argv[1:]
    parts: dict[str, Callable[[Bench], dict[str, Any]]] = {
        "processes": partial(processes, DROPLESS),
        "preset_processes": partial(processes, {}),
        "devices": devices,
        "kills": kills,
        "wandb": wandb,
    }
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    results["machine"] = describe_machine()
    for name in chosen or parts:
        start = time.perf_counter()
        results[name] = parts[name](Bench(Path(store), Path(out).absolute() / name))
        results[name]["seconds"] = round(time.perf_counter() - start)
        print(json.dumps({name: results[name]}), flush=True)
        write_json(RESULTS, results)


class Bench:
    """Rows of one store, and runs of `marin train` on them below one folder."""

    def __init__(self, store: Path, out: Path) -> None:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        self.out = out
        manifest = read_manifest(store)
        self.vocab = manifest.summary["tokenizer"]["vocab_size"]
        available = {name: cell["tokens"] for name, cell in manifest.summary["cells"].items()}
        tokens = STEPS * ROWS * SEQ_LEN
        specification = mixture.tilted(
            "runs", available, [("main", tokens * 4 // 5, 1.0), ("anneal", tokens // 5, 2.0)]
        )
        stages = [mixture.Stage(0.0, SEQ_LEN, ROWS)]
        schedule = mixture.Schedule.of(specification, stages, horizon=tokens, exhaustion="repeat")
        self.shards = packing.pack(packing.plan(store, schedule, out), out)

    def config(self, name: str, **changes: Any) -> TrainConfig:
        model = replace(preset("tiny"), vocab=self.vocab, **changes.pop("model", {}))
        base = TrainConfig(
            shards=self.shards,
            run=self.out / name,
            model=model,
            checkpoint=CheckpointConfig(every=100),
            evaluation=EvaluationConfig(times=0),
            log=LogConfig(wandb=False),
        )
        return replace(base, **changes)

    def start(
        self, config: TrainConfig, *options: str, **environment: str
    ) -> "subprocess.Popen[bytes]":
        folder = self.out / f"{config.run.name}-config"
        folder.mkdir(exist_ok=True)
        write_config(config, folder)
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "", **environment}
        environment["JAX_COMPILATION_CACHE_DIR"] = str(self.out / "compiled")
        command = [sys.executable, "-m", "marin.cli", "train", str(folder / "config.toml")]
        if config.stop_at is not None:  # of one start, and so in no file
            command += ["--set", f"stop_at={config.stop_at}"]
        return subprocess.Popen(
            [*command, *options, "--json"], env=environment, stdout=subprocess.DEVNULL
        )

    def train(self, config: TrainConfig, processes: int = 1) -> list[dict[str, Any]]:
        options: list[list[str]] = [[]]
        if processes > 1:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
            shared = ["--coordinator", address, "--processes", str(processes)]
            options = [[*shared, "--process", str(index)] for index in range(processes)]
        children = [self.start(config, *chosen) for chosen in options]
        assert [child.wait() for child in children] == [0] * processes
        return read_metrics(config.run / "metrics.jsonl")


def processes(model: dict[str, Any], bench: Bench) -> dict[str, Any]:
    mesh = MeshShape(expert=8)
    runs = [
        bench.train(bench.config(name, mesh=mesh, model=model), count)
        for name, count in (("one", 1), ("two", 2))
    ]
    one, two = (np.array([record["loss"] for record in run]) for run in runs)
    apart = np.abs(two / one - 1)
    found = {
        "steps": len(one),
        "transport": runs[0][0]["transport"],
        "largest_drop_fraction": max(record["drop_fraction"] for record in runs[0]),
        "median_step_seconds": [statistics.median(r["time/step"] for r in run) for run in runs],
        "largest_relative_difference_of_the_first_50_losses": float(apart[:50].max()),
        "relative_difference_of_the_last_loss": float(apart[-1]),
        "first_loss": float(one[0]),
        "last_loss": float(one[-1]),
    }
    assert len(one) == len(two) == STEPS
    assert apart[:50].max() <= 1e-4, found
    assert apart[-1] <= 0.01, found
    return found


def devices(bench: Bench) -> dict[str, Any]:
    mesh = MeshShape(expert=4)
    straight = bench.train(bench.config("straight", mesh=mesh, stop_at=20))
    bench.train(bench.config("parts", mesh=mesh, stop_at=10))
    parts = bench.train(bench.config("parts", mesh=mesh, stop_at=20))
    found: dict[str, Any] = {"bits_equal": _computed(straight) == _computed(parts)}
    assert found["bits_equal"]

    dropless = {"mesh": mesh, "model": DROPLESS}
    bench.train(bench.config("base", stop_at=10, **dropless))
    losses = {}
    for count in (4, 1, 2):
        shutil.copytree(bench.out / "base", bench.out / f"on-{count}")
        config = bench.config(f"on-{count}", stop_at=20, **dropless)
        records = bench.train(replace(config, mesh=MeshShape(expert=count)))
        losses[count] = np.array([r["loss"] for r in records[10:]])
    apart = max(float(np.abs(losses[n] / losses[4] - 1).max()) for n in (1, 2))
    found["largest_relative_difference_on_1_2_and_4_devices"] = apart
    assert apart <= 1e-4, found
    return found


def kills(bench: Bench) -> dict[str, Any]:
    draw = random.Random(0)
    changes: dict[str, Any] = {"mesh": MeshShape(expert=2), "stop_at": KILL_STEPS}
    changes["checkpoint"] = CheckpointConfig(every=3, keep=2)
    config = bench.config("killed", **changes)
    run = config.run
    seen: dict[int, Any] = {}
    inside, checkpoints, newest = 0, 0, 0
    for kill in range(KILLS):
        born = time.time()
        child = bench.start(config)
        moment = partial(_saving if kill % 2 else _trains, run, born, newest + draw.randrange(9))
        _wait_for(child, moment)
        time.sleep(draw.uniform(0, 0.1))
        inside += _saving(run, born, newest)
        child.send_signal(signal.SIGKILL)
        child.wait()
        for record in read_metrics(run / "metrics.jsonl"):
            kept = seen.setdefault(record["step"], _computed([record]))
            assert kept == _computed([record]), f"step {record['step']} differs after a kill"
        steps = complete_steps(run / "checkpoints")
        assert not newest or newest in steps or max(steps) > newest, "a checkpoint was lost"
        newest = max(steps, default=0)
        for step in steps:
            read_state(run / "checkpoints", step)
            checkpoints += 1
        print(f"kill {kill + 1}: newest checkpoint {newest}", flush=True)
    records = bench.train(config)
    straight = bench.train(bench.config("straight", **changes))
    rows = [row for r in records for row in range(r["first_row"], r["next_row"])]
    found = {
        "kills": KILLS,
        "inside_saves": inside,
        "checkpoints_verified": checkpoints,
        "rows_read_once_in_order": rows == list(range(KILL_STEPS * ROWS)),
        "bits_equal": _computed(records) == _computed(straight),
    }
    assert found["rows_read_once_in_order"], found
    assert found["bits_equal"], found
    return found


def wandb(bench: Bench) -> dict[str, Any]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(100)  # the kernel accepts for us, nobody ever answers
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        hanging = {"WANDB_MODE": "online", "WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40}
        changes: dict[str, Any] = {"mesh": MeshShape(expert=2), "stop_at": 60}
        seconds = {}
        for name, environment in (("warm", {}), ("without", {}), ("hanging", hanging)):
            log = LogConfig(wandb=bool(environment))
            config = bench.config(name, log=log, **changes)
            assert bench.start(config, **environment).wait() == 0
            steps = [r["time/step"] for r in read_metrics(config.run / "metrics.jsonl")[10:]]
            seconds[name] = statistics.median(steps)
    found = {f"median_step_seconds_{name}": seconds[name] for name in ("without", "hanging")}
    found["ratio"] = seconds["hanging"] / seconds["without"]
    assert found["ratio"] < 1.1, found
    return found


def _wait_for(child: "subprocess.Popen[bytes]", moment: Any) -> None:
    while not moment():
        assert child.poll() is None, "the run ended before it could be killed"
        time.sleep(0.002)


def _trains(run: Path, born: float, step: int) -> bool:
    """Whether a process that was started at `born` has finished `step` and said so."""
    path = run / "metrics.jsonl"
    if not path.exists() or path.stat().st_mtime < born:
        return False
    records = read_metrics(path)
    return bool(records) and records[-1]["step"] >= step


def _saving(run: Path, born: float, step: int) -> bool:
    """Whether a save of a later step than `step` that began after `born` is under way."""
    return any(
        path.stat().st_mtime > born
        and int(path.name.removeprefix("step-")) > step
        and not (path / "manifest.json").exists()
        for path in run.glob("checkpoints/step-*")
    )


def _computed(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without wall-clock times."""
    clock = ("time/", "tokens_per_second", "flops_per_second", "mfu", "alarms")
    return [{k: v for k, v in r.items() if not k.startswith(clock)} for r in records]


if __name__ == "__main__":
    main()
