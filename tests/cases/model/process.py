"""One of several processes that compute the small model's loss and gradients over their devices.

Arguments: process, processes, port, file. Loss and gradients by path go to the file (.npz).
"""

import dataclasses
import sys

import jax
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.hero import DOCUMENTS, LENGTH, TINY, by_path, packed, random_parameters

from marin.compat import QUICK_COMPILE
from marin.model import Batch, abstract, make_mesh, parameter_shardings, row_spec

process, processes, port = (int(argument) for argument in sys.argv[1:4])
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)

config = dataclasses.replace(TINY, transport="ragged")
mesh = make_mesh(replica=2, expert=jax.device_count() // 2)
graph, shapes, bias = nnx.split(abstract(config), nnx.Param, ...)


def spread(array: np.ndarray, sharding: NamedSharding) -> jax.Array:
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


params = jax.tree.map(spread, random_parameters(config), parameter_shardings(shapes, mesh))
bias = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), bias)
rows = NamedSharding(mesh, row_spec())
batch = Batch(*(spread(a, rows) for a in packed(DOCUMENTS, LENGTH, config.vocab)))


def evaluate(params: nnx.State, bias: nnx.State, batch: Batch) -> tuple[jax.Array, nnx.State]:
    def loss(params: nnx.State) -> jax.Array:
        return nnx.merge(graph, params, bias).loss(batch, mesh=mesh)[0]

    return jax.value_and_grad(loss)(params)


whole = NamedSharding(mesh, P())
run = jax.jit(evaluate, out_shardings=whole, compiler_options=QUICK_COMPILE)
value, gradients = run(params, bias, batch)
arrays = {path: np.asarray(leaf) for path, leaf in by_path(gradients).items()}
np.savez(sys.argv[4], devices=jax.device_count(), loss=np.asarray(value), **arrays)
