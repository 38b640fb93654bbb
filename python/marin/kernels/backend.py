"""Which implementation runs: decided by device, said once in the log, never changed in silence."""

import functools
import logging
from typing import Literal

import jax

Backend = Literal["reference", "pallas_gpu"]

_log = logging.getLogger("marin.kernels")


@functools.cache
def _announce(op: str, backend: Backend, device: str) -> None:
    _log.info("%s: %s on %s", op, backend, device)


def choose(op: str, backend: Backend | None) -> Backend:
    """The implementation of `op`: `backend` if given, else the one for JAX's default device."""
    device = jax.default_backend()
    chosen: Backend = backend or ("pallas_gpu" if device == "gpu" else "reference")
    _announce(op, chosen, device)
    return chosen
