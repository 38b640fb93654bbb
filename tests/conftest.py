"""Fixtures for every part. Devices are virtual: JAX sees 8 of them on one CPU.

Most of the time of these tests is compilation, of the same few models. Nothing of it is kept on
disk: with the quicker emitters of JAX 0.10, a program that comes from the compilation cache has
lost the order of its collectives, and its devices wait for each other for ever.
"""

import os
from pathlib import Path

import pytest
from support.compilation import quick_flags

# A device that waits for the others on a busy machine is no deadlock.
_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    *quick_flags(),
)
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS]).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"

# The longest first: a worker that began one of these at the end would keep the others waiting.
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
