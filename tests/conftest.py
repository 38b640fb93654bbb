"""Fixtures for every part. Devices are virtual: JAX sees 8 of them on one CPU.

Everything that one session compiles is kept for all of its tests, workers and child processes, and
removed with its end: most of the time of these tests is compilation, of the same few models.
"""

import os
import shutil
import tempfile

import pytest

# A device that waits for the others on a busy machine is no deadlock. What is compiled here runs
# for moments, so that optimizing it costs more than it gains.
_FLAGS = (
    "--xla_force_host_platform_device_count=8",
    "--xla_cpu_collective_call_terminate_timeout_seconds=600",
    "--xla_backend_optimization_level=0",
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
