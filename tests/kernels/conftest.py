"""Comparing a kernel with its reference, and lowering it for a GPU that is not there."""

from collections.abc import Callable
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh


def assert_close(actual, expected, tolerance: float) -> None:
    """Leaf by leaf, relative to the largest entry of the expected leaf."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * max(np.abs(e).max(initial=0), 1))


def lowered_for_cuda(function: Callable, *arguments) -> str:
    """The program of `function` for an H200. Newer versions of JAX ask which GPU is meant."""
    device = AbstractDevice("NVIDIA H200", None, "cuda")
    mesh = AbstractMesh((1,), ("x",), axis_types=(AxisType.Auto,), abstract_device=device)
    with use_abstract_mesh(mesh):
        traced = jax.jit(function).trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture(scope="session")
def bench() -> SimpleNamespace:
    return SimpleNamespace(assert_close=assert_close, lowered_for_cuda=lowered_for_cuda)
