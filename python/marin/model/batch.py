"""What a model is given, and what its layers share."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from marin.model.config import HeroConfig
from marin.model.conv import tap_masks
from marin.model.rope import rope_angles


class Batch(NamedTuple):
    """Packed rows. Segments count documents from 1 within a row, 0 is padding; positions restart
    with each document; `loss_mask` is true where the next token belongs to the same document.
    """

    tokens: Int[Array, "B L"]
    segment_ids: Int[Array, "B L"]
    positions: Int[Array, "B L"]
    loss_mask: Bool[Array, "B L"]


class Context(NamedTuple):
    """What all layers read of a batch, computed once."""

    segment_ids: Int[Array, "B L"]
    valid: Bool[Array, "B L"]
    angles: Float[Array, "B L pairs"]
    tap_masks: Bool[Array, "taps-1 B L"]
    qk_scale: Float[Array, ""]


def context_of(config: HeroConfig, batch: Batch, qk_scale: float | Float[Array, ""]) -> Context:
    """The context of a batch; `qk_scale` multiplies every attention logit."""
    return Context(
        segment_ids=batch.segment_ids,
        valid=batch.segment_ids > 0,
        angles=rope_angles(batch.positions, config.head_dim, config.rope_theta),
        tap_masks=tap_masks(batch.segment_ids, config.conv_taps),
        qk_scale=jnp.asarray(qk_scale, jnp.float32),
    )
