"""Short causal depthwise convolution that stops at document boundaries."""

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int


def tap_masks(segment_ids: Int[Array, "B L"], taps: int) -> Bool[Array, "taps-1 B L"]:
    """Entry j-1 is true where the position j to the left lies in the same document.

    Padding (segment 0) has no neighbours.
    """
    masks = []
    for shift in range(1, taps):
        left = jnp.pad(segment_ids, ((0, 0), (shift, 0)))[:, : segment_ids.shape[1]]
        masks.append((left == segment_ids) & (segment_ids > 0))
    return jnp.stack(masks) if masks else jnp.zeros((0, *segment_ids.shape), bool)


class ShortConv(nnx.Module):
    """`y_i = sum_j weight_j * x_{i-j}` over the taps j that stay in the document of position i.

    Starts as the identity: tap 0 is one, the others zero. Written as shifted multiply-adds, which
    XLA fuses into one pass on every device; its depthwise convolutions are slow on CPU.
    """

    def __init__(self, width: int, taps: int) -> None:
        self.weight = nnx.Param(jnp.zeros((taps, width), jnp.float32).at[0].set(1.0))

    def __call__(
        self, x: Float[Array, "B L width"], masks: Bool[Array, "taps-1 B L"]
    ) -> Float[Array, "B L width"]:
        weight = self.weight[...].astype(x.dtype)
        total = weight[0] * x
        for shift in range(1, weight.shape[0]):
            left = jnp.pad(x, ((0, 0), (shift, 0), (0, 0)))[:, : x.shape[1]]
            total += weight[shift] * jnp.where(masks[shift - 1][..., None], left, 0)
        return total

    def extend(
        self, x: Float[Array, "B T width"], tail: Float[Array, "B taps-1 width"]
    ) -> tuple[Float[Array, "B T width"], Float[Array, "B taps-1 width"]]:
        """The convolution of positions that follow `tail`, the last inputs before them (zeros
        before a document's start), and the tail after them."""
        weight = self.weight[...].astype(x.dtype)
        taps, length = weight.shape[0], x.shape[1]
        joined = jnp.concatenate((tail, x), axis=1)
        total = sum(
            weight[shift] * joined[:, taps - 1 - shift : taps - 1 - shift + length]
            for shift in range(taps)
        )
        return jnp.asarray(total), joined[:, length:]
