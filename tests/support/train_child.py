"""A process that trains the tiny model on the fake source; arguments are one JSON object."""

import json
import sys
from pathlib import Path

from support.training import fake_source, tiny_model

from marin.engine import Silent
from marin.train.config import CheckpointConfig, EvaluationConfig, LogConfig, MeshShape, TrainConfig
from marin.train.curriculum import Segment
from marin.train.processes import join
from marin.train.run import train
from marin.train.run_directory import RunDirectory

order = json.loads(sys.argv[1])
coordinator = order.get("coordinator")
processes = join(coordinator, order.get("processes", 1), order.get("process", 0))
for run in map(Path, order["runs"]):
    run.mkdir(exist_ok=True)
    config = TrainConfig(
        shards=Path("none"),
        run=run,
        model=tiny_model(**order.get("model", {})),
        mesh=MeshShape(expert=order.get("expert", 4), model=order.get("model_axis", 1)),
        checkpoint=CheckpointConfig(every=order["every"], keep=2),
        evaluation=EvaluationConfig(times=order.get("evaluations", 0)),
        log=LogConfig(wandb=False),
        stop_at=order.get("stop_at"),
    )
    segments = (Segment(order["steps"], 8, 32, "main"),)
    index, readers = processes.reader(config.mesh)
    source = fake_source(segments, run.parent, process=index, processes=readers)
    train(config, source, RunDirectory(run), progress=Silent(), processes=processes)
