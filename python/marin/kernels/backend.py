"""Which implementation runs: decided by device, said once in the log, never changed in silence."""

import functools
import logging
from typing import Literal

import jax

# `interpret` runs the GPU kernel in Pallas' interpreter: on any device, exactly and slowly.
Backend = Literal["reference", "pallas_gpu", "interpret"]

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


def power_of_two_tile(width: int, limit: int) -> int:
    """The largest power of two that divides `width`, at most `limit`: Triton's blocks are powers
    of two, and a tile that divides the width needs no mask on columns."""
    return min(width & -width, limit)
