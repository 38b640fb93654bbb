"""A trace of a few steps for XProf or Perfetto, in `RUN/profile`."""

import jax

from marin.train.config import TrainConfig

_SETTLING = 2  # steps of a process before the traced ones: the first also loads and allocates


class Trace:
    """Traces the configured number of steps of one process."""

    def __init__(self, config: TrainConfig, steps: range) -> None:
        start = min(steps.start + _SETTLING, steps.stop - 1)
        self._traced = range(start, start + (config.profile or 0))
        self._directory = config.run / "profile"
        self._running = False

    def before(self, step: int) -> None:
        """Starts or stops the trace; what was started before `step` may still be under way."""
        if step in self._traced and not self._running:
            jax.profiler.start_trace(str(self._directory))
            self._running = True
        elif step not in self._traced:
            self.stop()

    def stop(self) -> None:
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
