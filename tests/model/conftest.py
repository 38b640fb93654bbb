"""The small model compiled for one device, and its rows."""

from typing import Any

import jax
import numpy as np
import pytest
from support.hero import DOCUMENTS, LENGTH, TINY, Compiled, compile_model, packed

from marin.model import Batch, HeroConfig, make_mesh


@pytest.fixture(scope="session")
def tiny() -> HeroConfig:
    return TINY


@pytest.fixture(scope="session")
def one_device() -> Compiled:
    return compile_model(TINY, make_mesh())


@pytest.fixture(scope="session")
def batch(one_device: Compiled) -> Batch:
    return one_device.place(packed(DOCUMENTS, LENGTH, TINY.vocab))


@pytest.fixture(scope="session")
def result(one_device: Compiled, batch: Batch) -> Any:
    """((loss, aux), gradients) on one device."""
    return one_device.loss_and_grad(one_device.params, one_device.bias, batch)


@pytest.fixture(scope="session")
def random_bias(one_device: Compiled) -> Any:
    """A bias that changes what the router chooses."""
    rng = np.random.default_rng(5)

    def draw(leaf: jax.Array) -> jax.Array:
        values = 0.05 * rng.standard_normal(leaf.shape)
        return jax.device_put(values.astype(np.float32), leaf.sharding)

    return jax.tree.map(draw, one_device.bias)
