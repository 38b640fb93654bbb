"""One of several processes that compute a tiny model's loss and gradient norms over 4 devices.

Arguments: process, processes, port. Prints one JSON line.
"""

import dataclasses
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import NamedSharding

from marin.model import Batch, create, make_mesh, preset, row_spec
from marin.model.sharding import path_of

process, processes, port = (int(argument) for argument in sys.argv[1:])
if processes > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"127.0.0.1:{port}", processes, process)

config = dataclasses.replace(preset("tiny"), layers=2, vocab=64, transport_capacity=4.0)
config = dataclasses.replace(config, receiver_capacity=4.0)
mesh = make_mesh(replica=2, expert=2)
rows = NamedSharding(mesh, row_spec())
tokens = np.random.default_rng(0).integers(0, config.vocab, (8, 16)).astype(np.int32)
segments = np.repeat([[1, 2]], 8, axis=0).repeat(8, axis=1).astype(np.int32)
positions = np.tile(np.arange(8, dtype=np.int32), (8, 2))
mask = np.pad(segments[:, 1:] == segments[:, :-1], ((0, 0), (0, 1)))


def spread(array: np.ndarray) -> jax.Array:
    return jax.make_array_from_callback(array.shape, rows, lambda index: array[index])


batch = Batch(*(spread(array) for array in (tokens, segments, positions, mask)))
graph, params, bias = nnx.split(create(config, seed=0, mesh=mesh), nnx.Param, ...)


def evaluate(params: nnx.State, bias: nnx.State, batch: Batch) -> tuple[jax.Array, nnx.State]:
    def loss(params: nnx.State) -> jax.Array:
        return nnx.merge(graph, params, bias).loss(batch, mesh=mesh)[0]

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(jnp.linalg.norm, jax.tree.map(jnp.ravel, grads))


run = jax.jit(evaluate, compiler_options={"xla_backend_optimization_level": 0})
value, norms = run(params, bias, batch)
leaves = jax.tree_util.tree_leaves_with_path(norms)
print(
    json.dumps(
        {
            "devices": jax.device_count(),
            "loss": float(value),
            "norms": {path_of(keys): float(norm) for keys, norm in leaves},
        }
    )
)
