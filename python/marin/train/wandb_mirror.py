"""Weights & Biases beside the run: a process of its own that follows `metrics.jsonl`.

The training process never waits for it: whatever W&B does (hang, fail, retry) happens there. It
ends when its standard input closes, which also happens when the run is killed. Offline unless the
usual environment (`WANDB_MODE`, `WANDB_API_KEY`) says otherwise.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin.train import wandb_worker
from marin.train.metrics import METRICS_NAME

_GRACE_SECONDS = 15.0


class WandbMirror:
    """The mirror as the training process sees it: started, and at the end given a little time."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        directory = run / "wandb"
        directory.mkdir(exist_ok=True)
        order = {**settings, "run": str(run), "metrics": str(run / METRICS_NAME)}
        with (directory / "mirror.log").open("ab") as log:
            # The worker is run as a file: as a module it would import JAX, which it does not need.
            self._process = subprocess.Popen(
                [sys.executable, wandb_worker.__file__],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=mirror_environment(os.environ),
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._input.write(json.dumps(order).encode() + b"\n")
        self._input.flush()

    def close(self) -> bool:
        """Lets the mirror read to the end; False if it did not end in 15 s and was stopped."""
        self._input.close()
        try:
            return self._process.wait(_GRACE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False


def mirror_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the mirror: offline by default, and quiet."""
    ours = dict(environment)
    if "WANDB_API_KEY" not in ours:
        ours.setdefault("WANDB_MODE", "offline")
    ours.setdefault("WANDB_SILENT", "true")
    return ours
