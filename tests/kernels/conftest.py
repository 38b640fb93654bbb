"""Comparing a kernel with its reference, and lowering it for a GPU that is not there."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from marin.compat import lowered_for_cuda


def assert_close(actual, expected, tolerance: float) -> None:
    """Leaf by leaf, relative to the largest entry of the expected leaf."""
    for a, e in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert a.dtype == e.dtype
        a, e = np.asarray(a, np.float64), np.asarray(e, np.float64)
        np.testing.assert_allclose(a, e, rtol=0, atol=tolerance * max(np.abs(e).max(initial=0), 1))


@pytest.fixture(scope="session")
def bench() -> SimpleNamespace:
    return SimpleNamespace(assert_close=assert_close, lowered_for_cuda=lowered_for_cuda)
