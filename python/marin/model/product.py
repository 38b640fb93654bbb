"""Products of activations with weights, whose gradients leave the product in float32.

A weight's gradient is a sum over all tokens of a batch: over those of one device inside the
product, then over devices and microbatches. In the type of the activations each sum would round.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(
    indices: str, x: Float[Array, "..."], weight: Float[Array, "..."]
) -> Float[Array, "..."]:
    """`einsum(indices, x, weight)` in the type of x, to which the weight is rounded.

    Every index stands in two of the three arrays, so that each gradient is such a product, too.
    """
    return _forward(indices, x, weight)[0]


def _forward(indices: str, x: Array, weight: Array) -> tuple[Array, tuple[Array, Array]]:
    rounded = weight.astype(x.dtype)
    return jnp.einsum(indices, x, rounded), (x, rounded)


def _backward(indices: str, saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, weight = saved
    of_x, of_weight = indices.partition("->")[0].split(",")
    of_output = indices.partition("->")[2]
    to_x = jnp.einsum(f"{of_output},{of_weight}->{of_x}", cotangent, weight)
    to_weight = jnp.einsum(
        f"{of_x},{of_output}->{of_weight}", x, cotangent, preferred_element_type=jnp.float32
    )
    return to_x, to_weight


product.defvjp(_forward, _backward)
