"""Weights & Biases beside the run: a process of its own that follows `metrics.jsonl`.

The training process never waits for it: whatever W&B does (hang, fail, retry) happens there. Its
order is a file, so that nothing waits for a reader. It ends when its standard input closes, which
also happens when the run is killed. Offline unless the usual environment (`WANDB_MODE`,
`WANDB_API_KEY`) says otherwise.
"""

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin.engine import write_json
from marin.engine.manifest import fingerprint
from marin.train import wandb_worker
from marin.train.config import TrainConfig
from marin.train.metrics import METRICS_NAME
from marin.train.run_directory import RunDirectory

_GRACE_SECONDS = 15.0
_ORDER_NAME = "order.json"

# Parts of a configuration that change no number of a step.
_NOT_COMPUTED = {"shards", "run", "checkpoint", "log", "watch", "stop_at", "profile"}

logger = logging.getLogger("marin.train")


class WandbMirror:
    """The mirror as the training process sees it: started, and at the end given a little time."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._process = _started(run, settings)
        except OSError as error:
            logger.warning("%s: goes on without W&B (%s)", run, error)

    def close(self) -> bool:
        """Lets the mirror read to the end; False if it failed or was stopped after 15 s."""
        if self._process is None:
            return False
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(_GRACE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False


def _started(run: Path, settings: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    directory = run / "wandb"
    directory.mkdir(exist_ok=True)
    order = directory / _ORDER_NAME
    write_json(order, {**settings, "run": str(run), "metrics": str(run / METRICS_NAME)})
    with (directory / "mirror.log").open("ab") as log:
        # The worker is run as a file: as a module it would import JAX, which it does not need.
        return subprocess.Popen(
            [sys.executable, wandb_worker.__file__, str(order)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=mirror_environment(os.environ),
            start_new_session=True,
        )


def mirror_settings(config: TrainConfig, directory: RunDirectory, start: int) -> dict[str, Any]:
    """What W&B is told of a run that goes on from step `start`."""
    path = directory.path.resolve()
    plan, plain = directory.plan(), config.to_dict()
    return {
        # The same directory is the same W&B run, however often it is gone on with.
        "id": _id(path),
        "name": path.name,
        "group": path.parent.name,
        "project": config.log.project,
        # With the plan, what W&B keeps of a run is a rung of a ladder by itself.
        "config": plain | {"plan": plan} | _lineage(directory.parent()),
        "start": start,
        # While this stays, a step that is trained again is equal to the last bit.
        "history": fingerprint(
            {
                "config": {key: plain[key] for key in plain.keys() - _NOT_COMPUTED},
                "curriculum": plan["curriculum"],
                "legs": [(leg["step"], leg["fingerprint"]) for leg in plan["legs"]],
            }
        ),
    }


def _id(run: Path) -> str:
    return hashlib.blake2b(str(run).encode(), digest_size=8).hexdigest()


def _lineage(parent: Mapping[str, Any] | None) -> dict[str, Any]:
    """The W&B run that a branch began from, and at which step."""
    if parent is None:
        return {}
    run = Path(parent["run"])
    return {"parent": {"run": run.name, "id": _id(run), "step": parent["step"]}}


def mirror_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the mirror: offline by default, and quiet."""
    ours = dict(environment)
    if "WANDB_API_KEY" not in ours:
        ours.setdefault("WANDB_MODE", "offline")
    ours.setdefault("WANDB_SILENT", "true")
    return ours
