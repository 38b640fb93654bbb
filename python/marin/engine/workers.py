"""Where the tasks of a stage run: this process, worker processes, or a Ray cluster.

A task is a function of a module and one argument, a small frozen value; it reads and writes files
and returns a small value. Results come in the order of the tasks, and a task's output does not
depend on where it ran, so every engine gives the same bytes.
"""

import logging
import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol, TypeVar

from marin.errors import MarinError

T = TypeVar("T")
R = TypeVar("R")


class Engine(Protocol):
    """Runs tasks; an exception of a task is raised where its result would stand."""

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]: ...


@dataclass(frozen=True)
class Local:
    """This process (`workers` = 1), or as many processes. Fresh ones are started rather than
    forked: threads of Arrow and of tokenizers would not survive a fork."""

    workers: int = 1

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        if self.workers < 1:
            raise MarinError(f"workers = {self.workers}: expected at least 1")
        if self.workers == 1 or len(tasks) < 2:
            yield from map(function, tasks)
            return
        context = multiprocessing.get_context("spawn")
        threads = max(1, (os.cpu_count() or 1) // self.workers)
        workers = min(self.workers, len(tasks))
        with ProcessPoolExecutor(workers, context, _begin_worker, (threads,)) as pool:
            try:
                yield from pool.map(function, tasks)
            except BrokenProcessPool:
                raise MarinError(
                    "a worker process was killed, perhaps for lack of memory; the same command "
                    "with fewer workers goes on from here"
                ) from None
            finally:
                pool.shutdown(cancel_futures=True)


def _begin_worker(threads: int) -> None:
    """Shares the cores: the libraries of this worker start so many threads each. Ends the worker
    with its parent: a file that it went on to write would fall among those of a later run."""
    import pyarrow as pa

    os.environ["RAYON_NUM_THREADS"] = str(threads)
    pa.set_cpu_count(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@dataclass(frozen=True)
class Threads:
    """As many threads of this process (0: one per core), for tasks that wait for disks or leave the
    interpreter free. An error ends the map once the tasks that run have finished."""

    count: int = 0

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        with ThreadPoolExecutor(self.count or os.cpu_count()) as pool:
            try:
                yield from pool.map(function, tasks)
            finally:
                pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Ray:
    """A Ray cluster; `address` as for `ray.init` (`auto`, `ray://host:port`). All nodes see the
    same paths. A task that dies with its node is run again elsewhere."""

    address: str = "auto"

    def map(self, function: Callable[[T], R], tasks: Sequence[T]) -> Iterator[R]:
        try:
            import ray
        except ImportError:
            raise MarinError("ray is missing; pip install '.[ray]' in the repository") from None
        if not ray.is_initialized():
            try:
                ray.init(self.address, logging_level=logging.ERROR, log_to_driver=False)
            except ConnectionError as error:
                reason = str(error).strip().partition("\n")[0]
                raise MarinError(f"no Ray cluster at {self.address}: {reason}") from None
        remote = ray.remote(max_retries=3)(function)
        waiting = [remote.remote(task) for task in tasks]
        for reference in waiting:
            try:
                yield ray.get(reference)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None


def engine_for(name: str) -> Engine:
    """`local`, a number of worker processes, `auto` or a `ray://` address."""
    if name == "local":
        return Local()
    if name.isdigit():
        return Local(int(name))
    if name == "auto" or name.startswith("ray://"):
        return Ray(name)
    raise MarinError(
        f"engine {name!r}: expected local, a number of workers, auto or ray://HOST:PORT"
    )
