"""Fixtures for every part. Devices are virtual: JAX sees 8 of them on one CPU.

Everything that one session compiles is kept for all of its tests, workers and child processes, and
removed with its end: most of the time of these tests is compilation, of the same few models.
"""

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from support.compilation import quick_flags

os.environ["PJRT_NPROC"] = "1"  # see `marin.train.devices`
# A device that waits for the others on a busy machine is no deadlock.
_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    *quick_flags(),
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"

_COMPILED = "JAX_COMPILATION_CACHE_DIR"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers inherit the environment of the session
        os.environ[_COMPILED] = tempfile.mkdtemp(prefix="marin-compiled-")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(_COMPILED), ignore_errors=True)


# Files that take longest, the longest first: a worker that begins one of them at the end would keep
# the others waiting.
_LONGEST = (
    "docs/test_pages.py",
    "pipelines/test_quickstart.py",
    "train/test_processes.py",
    "train/test_run.py",
    "train/test_kill.py",
    "bench/test_balance.py",
    "train/test_step.py",
    "model/",
    "dispatch/",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    def rank(item: pytest.Item) -> int:
        path = item.path.relative_to(Path(__file__).parent).as_posix()
        found = (i for i, longest in enumerate(_LONGEST) if path.startswith(longest))
        return next(found, len(_LONGEST))

    items.sort(key=rank)
