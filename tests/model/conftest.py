"""A small model, packed rows with padding, and compiled losses shared by the tests of this part."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding

from marin.model import (
    Batch,
    Hero,
    HeroConfig,
    abstract,
    create,
    make_mesh,
    parameter_shardings,
    preset,
    row_spec,
)

FAST_COMPILE = {"xla_backend_optimization_level": 0}


def packed(lengths: list[list[int]], row: int, vocab: int, seed: int = 0) -> Batch:
    """Rows that hold documents of these lengths, the rest padding; random tokens."""
    shape = (len(lengths), row)
    segments, positions = np.zeros(shape, np.int32), np.zeros(shape, np.int32)
    for r, documents in enumerate(lengths):
        start = 0
        for d, n in enumerate(documents):
            segments[r, start : start + n] = d + 1
            positions[r, start : start + n] = np.arange(n)
            start += n
    tokens = np.random.default_rng(seed).integers(0, vocab, shape).astype(np.int32)
    tokens[segments == 0] = 0
    follows = np.pad(segments[:, 1:], ((0, 0), (0, 1)))
    mask = (segments == follows) & (segments > 0)
    return Batch(*(jnp.asarray(a) for a in (tokens, segments, positions, mask)))


class Compiled(NamedTuple):
    """A model taken apart, and its compiled loss and gradient."""

    config: HeroConfig
    mesh: Mesh
    merge: Callable[[Any, Any], Hero]
    params: Any
    bias: Any
    loss_and_grad: Callable[..., Any]
    logits: Callable[..., Any]
    rows: NamedSharding


@pytest.fixture(scope="session")
def tiny() -> HeroConfig:
    return dataclasses.replace(preset("tiny"), transport="local", vocab=200, window=6)


@pytest.fixture(scope="session")
def batch(tiny: HeroConfig) -> Batch:
    lengths = [[20, 9], [32], [5, 5, 5, 5], [12, 20], [], [31], [1, 1, 30], [16, 10]]
    return packed(lengths, 32, tiny.vocab)


def compile_model(config: HeroConfig, mesh: Mesh, params: Any = None) -> Compiled:
    graph, shapes, bias = nnx.split(abstract(config), nnx.Param, ...)
    if params is None:
        params = nnx.state(create(config, seed=0, mesh=mesh), nnx.Param)
    params = jax.device_put(params, parameter_shardings(shapes, mesh))
    bias = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), bias)

    def merge(params: Any, bias: Any) -> Hero:
        return nnx.merge(graph, params, bias)

    def loss(params: Any, bias: Any, batch: Batch) -> Any:
        return merge(params, bias).loss(batch, mesh=mesh)

    def logits(params: Any, bias: Any, batch: Batch) -> Any:
        return merge(params, bias).logits(batch, mesh=mesh)

    return Compiled(
        config,
        mesh,
        merge,
        params,
        bias,
        jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=FAST_COMPILE),
        jax.jit(logits, compiler_options=FAST_COMPILE),
        NamedSharding(mesh, row_spec()),
    )


@pytest.fixture(scope="session")
def one_device(tiny: HeroConfig) -> Compiled:
    return compile_model(tiny, make_mesh())


@pytest.fixture(scope="session")
def random_bias(one_device: Compiled) -> Any:
    """A bias that changes what the router chooses."""
    rng = np.random.default_rng(5)
    return jax.tree.map(
        lambda x: jnp.asarray(0.05 * rng.standard_normal(x.shape), jnp.float32), one_device.bias
    )


@pytest.fixture(scope="session")
def compiled() -> Callable[..., Compiled]:
    return compile_model


@pytest.fixture(scope="session")
def pack() -> Callable[..., Batch]:
    return packed
