"""Compiled steps for every row length of a run, made before they are needed."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import jax
from jax.experimental.compilation_cache import compilation_cache

from marin.train.curriculum import Curriculum, Segment
from marin.train.state import Trainee
from marin.train.step import CompiledStep, compile_step

T = TypeVar("T")
Shape = tuple[int, int]


class StepCompiler:
    """One compiled step per shape of batch; the next shapes compile while the first one trains."""

    def __init__(
        self, futures: dict[Shape, Future[CompiledStep]], pool: ThreadPoolExecutor
    ) -> None:
        self._futures = futures
        self._pool = pool

    def later(self, compile_other: Callable[[], T]) -> "Future[T]":
        """Compiles something else when the steps are ready."""
        return self._pool.submit(compile_other)

    def step(self, segment: Segment) -> CompiledStep:
        """The step for the batches of a segment; waits if it is still being compiled."""
        return self._futures[segment.shape].result()


@contextmanager
def compiled_in(directory: Path) -> Iterator[None]:
    """Keeps compiled steps in `directory`, so that a run which is started again does not compile
    again; a cache that the user has configured is used instead.
    """
    if jax.config.values["jax_compilation_cache_dir"] is not None:
        yield
        return
    jax.config.update("jax_compilation_cache_dir", str(directory))
    try:
        yield
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


@contextmanager
def compile_ahead(
    trainee: Trainee, curriculum: Curriculum, steps: range, cells: int, microbatches: int
) -> Iterator[StepCompiler]:
    """Starts to compile the steps that `steps` of the curriculum need, in their order."""
    shapes = dict.fromkeys(segment.shape for segment in curriculum.segments_of(steps))
    pool = ThreadPoolExecutor(1, thread_name_prefix="compile")
    try:
        futures = {
            shape: pool.submit(compile_step, trainee, *shape, cells, microbatches)
            for shape in shapes
        }
        yield StepCompiler(futures, pool)
    finally:
        pool.shutdown(cancel_futures=True)
