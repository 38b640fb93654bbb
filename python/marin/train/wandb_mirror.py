"""Weights & Biases beside the run: a process of its own that follows `metrics.jsonl`.

The training process never waits for it: whatever W&B does (hang, fail, retry) happens there. Its
order is a file, so that nothing waits for a reader. It ends when its standard input closes, which
also happens when the run is killed; where it ends before, the next checkpoint starts another, which
goes on where W&B stands. Offline unless the usual environment (`WANDB_MODE`, `WANDB_API_KEY`) says
otherwise.
"""

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marin.engine import read_json, write_json
from marin.engine.manifest import fingerprint
from marin.errors import MALFORMED, MarinError
from marin.train import wandb_worker
from marin.train.config import TrainConfig
from marin.train.metrics import METRICS_NAME
from marin.train.run_directory import RunDirectory

_GRACE_SECONDS = 15.0
_RESTARTS = 10  # of one process of a run
_ORDER_NAME = "order.json"

# Parts of a configuration that change no number of a step.
_NOT_COMPUTED = {"shards", "run", "checkpoint", "log", "watch", "stop_at", "profile"}

logger = logging.getLogger("marin.train")


class WandbMirror:
    """The mirror as the training process sees it: started, looked after, and at the end given a
    little time."""

    def __init__(self, run: Path, settings: Mapping[str, Any]) -> None:
        self._run = run
        self._settings = settings
        self._restarts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def check(self) -> None:
        """Starts a worker that has ended again, at most 10 times. Waits for nothing."""
        if self._process is None or self._process.poll() is None:
            return
        status = self._process.returncode
        _closed_input(self._process)
        self._process = None
        if self._restarts == _RESTARTS:
            logger.warning("%s: goes on without W&B, whose mirror ended again", self._run)
            return
        if not self._restarts:
            logger.warning(
                "%s: the W&B mirror ended with status %d and is started again; %s says why",
                self._run, status, _log_of(self._run),
            )  # fmt: skip
        self._restarts += 1
        self._start()

    def close(self) -> bool:
        """Lets the mirror read to the end; False, with a warning, if it failed or was stopped since
        it got no further for 15 s."""
        complete = self._process is not None and _ends(self._process, self._run)
        if not complete:
            logger.warning(
                "%s: W&B may lack steps of this run (%s says why); `marin train resume %s` sends "
                "it what is missing, `wandb sync` what lies in %s",
                self._run, _log_of(self._run), self._run, self._run / "wandb",
            )  # fmt: skip
        return complete

    def _start(self) -> None:
        try:
            self._process = _started(self._run, self._settings)
        except OSError as error:
            logger.warning("%s: goes on without W&B (%s)", self._run, error)


def catch_up(run: Path, settings: Mapping[str, Any]) -> None:
    """Mirrors what W&B lacks of a run that has no step left to train."""
    if last_mirrored(run) < settings["start"] - 1:
        WandbMirror(run, settings).close()


def last_mirrored(run: Path) -> int:
    """The last step that W&B has of a run; -1 if none."""
    path = run / "wandb" / wandb_worker.PLACE_NAME
    try:
        return int(read_json(path, "where W&B stands")["step"])
    except (MarinError, *MALFORMED):
        return -1


def _ends(process: "subprocess.Popen[bytes]", run: Path) -> bool:
    """Whether the worker ends as it should; it is stopped where it gets no further."""
    _closed_input(process)
    before = None
    while before != (reached := last_mirrored(run)):
        before = reached
        try:
            return process.wait(_GRACE_SECONDS) == 0
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()
    return False


def _closed_input(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()


def _log_of(run: Path) -> Path:
    return run / "wandb" / "mirror.log"


def _started(run: Path, settings: Mapping[str, Any]) -> "subprocess.Popen[bytes]":
    directory = run / "wandb"
    directory.mkdir(exist_ok=True)
    order = directory / _ORDER_NAME
    write_json(order, {**settings, "run": str(run), "metrics": str(run / METRICS_NAME)})
    with _log_of(run).open("ab") as log:
        # The worker is run as a file: as a module it would import JAX, which it does not need.
        return subprocess.Popen(
            [sys.executable, wandb_worker.__file__, str(order)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env=mirror_environment(os.environ),
            start_new_session=True,
        )


def mirror_settings(
    config: TrainConfig, directory: RunDirectory, start: int, offset: int
) -> dict[str, Any]:
    """What W&B is told of a run that goes on from step `start`, whose line begins at byte `offset`
    of the metrics."""
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
        "offset": offset,
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
