"""How a kernel is checked and timed: what its `bench` declares, and the stopwatch.

Fractions are of what the same machine was measured to do: bytes over the bandwidth of a large copy,
floating-point operations over the rate of a large bfloat16 matrix product.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from marin.kernels.backend import Backend


@dataclass(frozen=True)
class Shape:
    """What one device sees: T tokens of width w, K assignments each, E local experts of width m."""

    tokens: int
    top_k: int
    width: int
    inner: int
    experts: int
    dtype: Any = jnp.bfloat16

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k


# The run's largest model on one of 64 expert-parallel devices.
HERO = Shape(tokens=65_536, top_k=8, width=3_072, inner=3_072, experts=6)
# For a rehearsal in the interpreter.
SMALL = Shape(tokens=48, top_k=2, width=64, inner=64, experts=3)


@dataclass(frozen=True)
class Case:
    """One measured operation.

    run: the function of `arguments` that a backend gives. rivals: other tools' functions of the
    same arguments. check: the values, and gradients where there are any, that a backend gives;
    compared with the reference's, relative to the largest entry of each array. moved_bytes and
    flops: what the operation has to move and compute at least.
    """

    op: str
    arguments: tuple[Any, ...]
    run: Callable[[Backend], Callable[..., Any]]
    check: Callable[[Backend], Callable[..., Any]]
    tolerance: float
    rivals: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    moved_bytes: int = 0
    flops: int = 0


RUN_SECONDS = 0.02
"""One run is as many calls as take about this long, so that starting them costs little of it."""


def seconds(function: Callable[..., Any], *arguments: Any, runs: int = 20) -> list[float]:
    """Wall-clock seconds per call of the compiled function in each of `runs` runs, after three
    warm-ups. The calls of a run wait for each other on the device alone; on a CPU the host waits
    for each, for virtual devices that are behind by several calls may wait for each other for ever.
    """
    compiled = jax.jit(function).lower(*arguments).compile()
    on_cpu = jax.default_backend() == "cpu"

    def run(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            result = compiled(*arguments)
            if on_cpu:
                jax.block_until_ready(result)
        jax.block_until_ready(result)
        return (time.perf_counter() - start) / calls

    once = min(run(1) for _ in range(3))
    calls = max(1, round(RUN_SECONDS / once))
    return [run(calls) for _ in range(runs)]


def copy_bandwidth(size: int) -> float:
    """Bytes per second, read and written, of a copy of `size` bytes."""
    x = jnp.ones(size // 4, jnp.float32)
    return 2 * size / statistics.median(seconds(lambda a: a + 1, x))


def matrix_rate(n: int) -> float:
    """Floating-point operations per second of an n x n bfloat16 product of random numbers: of ones,
    a device draws less power and may run faster than it ever does in earnest."""
    a = jax.random.normal(jax.random.key(0), (n, n), jnp.bfloat16)
    return 2.0 * n**3 / statistics.median(seconds(jnp.matmul, a, a))


def largest_error(actual: Any, expected: Any) -> float:
    """Over all arrays, the largest difference relative to the array's largest entry."""

    def error(a: Array, e: Array) -> Array:
        a, e = a.astype(jnp.float32), e.astype(jnp.float32)
        return jnp.max(jnp.abs(a - e)) / jnp.maximum(jnp.max(jnp.abs(e)), 1e-30)

    errors = jax.tree.map(error, actual, expected)
    return max(float(e) for e in jax.tree.leaves(errors))


def probe(like: Array) -> Array:
    """A gradient without symmetry in the shape of `like`."""
    row = jax.lax.broadcasted_iota(jnp.float32, like.shape, 0)
    column = jax.lax.broadcasted_iota(jnp.float32, like.shape, like.ndim - 1)
    return jnp.cos(0.1 * row + 0.7 * column).astype(like.dtype)
