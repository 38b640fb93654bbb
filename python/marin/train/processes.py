"""The processes of one run, on one host or many: each has its devices and reads its rows.

What is not an array (configuration, plan, metrics, checkpoint manifests, W&B) is written by the
first process alone, and what it finds there (a lock, a checkpoint to go on from, a mistake of the
user) it tells the others, so that all take the same steps or end with the same error. The run
directory and the shards lie on storage that all of them see.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from marin.errors import MarinError
from marin.train.config import MeshShape

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """This process's place among `count`; `index` counts from 0."""

    index: int = 0
    count: int = 1

    @property
    def is_first(self) -> bool:
        return self.index == 0

    def reader(self, mesh: MeshShape) -> tuple[int, int]:
        """Which reader of rows this process is, of how many: processes that share one `model` axis
        read the same rows.

        Raises:
          MarinError: a process would hold a part of one model and a part of another.
        """
        own = mesh.devices // self.count
        if own % mesh.model and mesh.model % own:
            raise MarinError(
                f"mesh.model = {mesh.model}: expected a multiple or a divisor of the {own} devices "
                "of a process"
            )
        sharers = max(1, mesh.model // own)
        return self.index // sharers, self.count // sharers

    def from_first(self, work: Callable[[], T]) -> T:
        """What `work` returns in the first process: a JSON value. Others do not call it.

        Raises:
          MarinError: `work` did, in the first process; then in every process. After any other error
            there, the others end with a `MarinError` instead of waiting for it.
        """
        if self.count == 1:
            return work()
        answer: dict[str, Any] = {}
        if self.is_first:
            try:
                answer = {"value": work()}
            except MarinError as error:
                answer = {"error": str(error)}
            except Exception as error:
                self._told({"error": f"the first process failed: {error}"})
                raise
        answer = self._told(answer)
        if "error" in answer:
            raise MarinError(answer["error"])
        value: T = answer["value"]
        return value

    def wait(self, name: str) -> None:
        """Returns when every process has come here; `name` says where that is."""
        if self.count > 1:
            multihost_utils.sync_global_devices(name)

    def _told(self, answer: dict[str, Any]) -> dict[str, Any]:
        content = np.frombuffer(json.dumps(answer).encode(), np.uint8)
        length = int(multihost_utils.broadcast_one_to_all(np.int32(len(content))))
        padded = np.zeros(length, np.uint8)
        if self.is_first:
            padded[:] = content
        told = np.asarray(multihost_utils.broadcast_one_to_all(padded), np.uint8)
        heard: dict[str, Any] = json.loads(told.tobytes())
        return heard


ALONE = Processes()


def join(coordinator: str | None, count: int | None, index: int | None) -> Processes:
    """Connects this process with the others of its run; before JAX looks for devices.

    Args:
      coordinator: `host:port` of the first process; None where JAX finds out by itself (Slurm,
        Open MPI, Kubernetes, TPU pods), as may be `count` and `index`.

    Raises:
      MarinError: the others cannot be reached, or JAX cannot find out.
    """
    if count is not None and not (count >= 1 and index is not None and 0 <= index < count):
        raise MarinError(f"--process {index}: expected a number from 0 to {count - 1}")
    if count == 1:
        return ALONE
    if coordinator is not None and not coordinator.rpartition(":")[2].isdecimal():
        raise MarinError(f"--coordinator {coordinator}: expected HOST:PORT of the first process")
    try:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        # JAX would catch SIGTERM, which is to end a process, and leave it to us.
        jax.config.update("jax_enable_preemption_service", False)
        jax.distributed.initialize(coordinator, count, index)
    except (RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise MarinError(
            f"{coordinator or 'no --coordinator'}: the processes cannot be connected ({reason})"
        ) from None
    if count is None or index is None:
        return Processes(jax.process_index(), jax.process_count())
    return Processes(index, count)  # asking JAX would fix the number of virtual devices
