"""A small model with random weights, packed rows with padding, and its compiled loss."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from marin.compat import QUICK_COMPILE
from marin.model import Batch, Hero, HeroConfig, abstract, parameter_shardings, preset, row_spec
from marin.model.sharding import path_of

TINY = dataclasses.replace(
    preset("tiny"), transport="local", remat="none", vocab=200, window=6, cross_entropy_block=128
)
LENGTH = 36
"""Divides no dimension of the model, so that shapes tell activations from weights."""
DOCUMENTS = [[20, 9], [32], [5, 5, 5, 5], [12, 20], [], [31], [1, 1, 30], [16, 10]]


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
    return Batch(tokens, segments, positions, mask)


def random_parameters(config: HeroConfig, seed: int = 0) -> Any:
    """Weights of which none is at its start: convolutions mix positions and gates are open."""
    shapes = nnx.state(abstract(config), nnx.Param)
    rng = np.random.default_rng(seed)

    def draw(keys: Any, leaf: Any) -> np.ndarray:
        path = path_of(keys)
        values = 0.5 * rng.standard_normal(leaf.shape) / config.hidden**0.5
        if path.endswith("gain"):
            values += 1
        elif path.endswith("conv/weight"):
            values[..., 0, :] += 1
        return values.astype(np.float32)

    return jax.tree_util.tree_map_with_path(draw, shapes)


class Compiled(NamedTuple):
    """A model taken apart, laid out over a mesh, and its compiled loss, gradient and logits."""

    config: HeroConfig
    mesh: Mesh
    merge: Callable[[Any, Any], Hero]
    params: Any
    bias: Any
    loss_and_grad: Callable[..., Any]
    logits: Callable[..., Any]
    place: Callable[[Batch], Batch]


def compile_model(config: HeroConfig, mesh: Mesh) -> Compiled:
    graph, shapes, bias = nnx.split(abstract(config), nnx.Param, ...)
    params = jax.device_put(random_parameters(config), parameter_shardings(shapes, mesh))
    bias = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), bias)
    bias = jax.device_put(bias, NamedSharding(mesh, P()))

    def merge(params: Any, bias: Any) -> Hero:
        return nnx.merge(graph, params, bias)

    def loss(params: Any, bias: Any, batch: Batch) -> Any:
        return merge(params, bias).loss(batch, mesh=mesh)

    def logits(params: Any, bias: Any, batch: Batch) -> Any:
        return merge(params, bias).logits(batch, mesh=mesh)

    rows = NamedSharding(mesh, row_spec())
    return Compiled(
        config,
        mesh,
        merge,
        params,
        bias,
        jax.jit(jax.value_and_grad(loss, has_aux=True), compiler_options=QUICK_COMPILE),
        jax.jit(logits, compiler_options=QUICK_COMPILE),
        lambda batch: jax.device_put(batch, rows),
    )


def by_path(tree: Any) -> dict[str, Any]:
    return {path_of(keys): leaf for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def assert_same_gradients(ours: dict[str, Any], theirs: dict[str, Any], tolerance: float) -> None:
    """Leaf by leaf, relative to the leaf's largest entry as well as to each entry."""
    assert ours.keys() == theirs.keys()
    for path, leaf in theirs.items():
        scale = float(jnp.abs(leaf).max())
        np.testing.assert_allclose(
            ours[path], leaf, rtol=tolerance, atol=tolerance * scale, err_msg=path
        )


def assert_gathers_no_activations(program: str, batch: Batch, config: HeroConfig) -> None:
    """Weights, token numbers and routings may travel whole; scores and rows of others may not."""
    rows, length = batch.tokens.shape
    for dtype, shape in re.findall(r"= (\S+)\[([\d,]*)\]\S* all-gather", program):
        sizes = [int(n) for n in shape.split(",")]
        of_tokens = any(size % length == 0 for size in sizes)
        assert not of_tokens or np.prod(sizes) < rows * length * config.experts, (dtype, shape)
