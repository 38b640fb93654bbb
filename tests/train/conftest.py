"""Runs of these tests share compiled steps."""

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest


@pytest.fixture(scope="session")
def compiled_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(scope="module", autouse=True)
def _share_compiled_steps(compiled_steps: Path) -> Iterator[None]:
    jax.config.update("jax_compilation_cache_dir", str(compiled_steps))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    yield
    jax.config.update("jax_compilation_cache_dir", None)
