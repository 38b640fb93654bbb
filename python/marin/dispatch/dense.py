"""`dense`: the meaning of the layer, against which every transport is measured."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from marin.dispatch.types import Experts, Routing


def moe_dense(x: Float[Array, "T w"], routing: Routing, experts: Experts) -> Float[Array, "T w"]:
    """Every expert on every token, weighted by the token's combine weight for that expert.

    Sums are float32; inner activations are rounded to the type of `x`, as in the grouped product.
    """
    gate, up, down = (p.astype(x.dtype) for p in experts)
    g = jnp.einsum("tw,ewm->etm", x, gate, preferred_element_type=jnp.float32)
    u = jnp.einsum("tw,ewm->etm", x, up, preferred_element_type=jnp.float32)
    h = (jax.nn.silu(g) * u).astype(x.dtype)
    out = jnp.einsum("etm,emw->etw", h, down, preferred_element_type=jnp.float32).astype(x.dtype)
    y = jnp.einsum("te,etw->tw", _expert_weights(routing, gate.shape[0]), out.astype(jnp.float32))
    return y.astype(x.dtype)


def _expert_weights(routing: Routing, num_experts: int) -> Float[Array, "T E"]:
    weights = jnp.where(routing.valid[:, None], routing.weights, 0.0)
    chosen: Int[Array, "T K E"] = jax.nn.one_hot(routing.experts, num_experts, dtype=jnp.float32)
    return jnp.einsum("tk,tke->te", weights, chosen)
