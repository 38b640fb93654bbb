"""Compiled steps for every row length of a run, made before they are needed."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from marin.train.curriculum import Curriculum, Segment
from marin.train.state import Trainee
from marin.train.step import CompiledStep, compile_step

Shape = tuple[int, int]


class StepCompiler:
    """One compiled step per shape of batch; the next shapes compile while the first one trains."""

    def __init__(self, futures: dict[Shape, Future[CompiledStep]]) -> None:
        self._futures = futures

    def is_ready(self, segment: Segment) -> bool:
        return self._futures[_shape(segment)].done()

    def step(self, segment: Segment) -> CompiledStep:
        """The step for the batches of a segment; waits if it is still being compiled."""
        return self._futures[_shape(segment)].result()


@contextmanager
def compile_ahead(
    trainee: Trainee, curriculum: Curriculum, steps: range, cells: int, microbatches: int
) -> Iterator[StepCompiler]:
    """Starts to compile the steps that `steps` of the curriculum need, in their order."""
    shapes = dict.fromkeys(_shape(segment) for segment in curriculum.segments_of(steps))
    pool = ThreadPoolExecutor(1, thread_name_prefix="compile")
    try:
        yield StepCompiler(
            {
                shape: pool.submit(compile_step, trainee, *shape, cells, microbatches)
                for shape in shapes
            }
        )
    finally:
        pool.shutdown(cancel_futures=True)


def _shape(segment: Segment) -> Shape:
    return segment.batch_size, segment.seq_len
