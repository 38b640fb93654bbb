"""Where a trained model's routers send each token, for studies of dispatch on real text."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float

from marin.dispatch import Local
from marin.model.batch import Batch, context_of
from marin.model.hero import Block, Hero
from marin.model.router import Choice


def choices(model: Hero, batch: Batch, *, mesh: Mesh, qk_scale: float = 1.0) -> Choice:
    """Chosen experts and combine weights [N, B, L, k] of every layer; padding's mean nothing.

    Layers are computed dropless, so what a layer is given does not depend on a transport.
    """
    config = model.config
    context = context_of(config, batch, qk_scale)
    graph, stacked = nnx.split(model.layers)

    def body(
        x: Float[Array, "B L d"], layer: tuple[Any, Array, Array]
    ) -> tuple[Float[Array, "B L d"], Choice]:
        weights, is_global, bias = layer
        block: Block = nnx.merge(graph, weights)
        x = x + block.attention(block.attention_norm(x), context, is_global)
        normed = block.moe_norm(x)
        choice, _ = block.moe.router(normed, bias, context.valid, mesh)
        out, _, _ = block.moe(normed, context, bias, Local(), mesh)
        return x + out, choice

    embedding = model.embedding[...].astype(config.dtype)
    x = model.embedding_norm(jnp.take(embedding, batch.tokens, axis=0))
    flags = jnp.asarray(config.global_layers)
    chosen: Choice = jax.lax.scan(body, x, (stacked, flags, model.router_bias[...]))[1]
    return chosen
