"""Training runs: from packed shards and a configuration to a finished, watched, resumable run."""

from marin.train.config import (
    CheckpointConfig,
    EvaluationConfig,
    LogConfig,
    MeshShape,
    TrainConfig,
    WatchConfig,
)
from marin.train.curriculum import Curriculum, Segment
from marin.train.edge import config_from, load_config
from marin.train.metrics import read_metrics
from marin.train.operations import Revised, branch, remix, shorten
from marin.train.run import RunResult, resume, run

__all__ = [
    "CheckpointConfig",
    "Curriculum",
    "EvaluationConfig",
    "LogConfig",
    "MeshShape",
    "Revised",
    "RunResult",
    "Segment",
    "TrainConfig",
    "WatchConfig",
    "branch",
    "config_from",
    "load_config",
    "read_metrics",
    "remix",
    "resume",
    "run",
    "shorten",
]
