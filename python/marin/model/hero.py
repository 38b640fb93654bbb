"""The hero model: embedding, one compiled body for all layers, readout and loss."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from marin.dispatch import Stats, Transport
from marin.model.attention import Attention
from marin.model.batch import Batch, Context, context_of
from marin.model.config import HeroConfig
from marin.model.cross_entropy import cross_entropy
from marin.model.init import normal
from marin.model.moe import LatentMoE
from marin.model.norm import GatedNorm
from marin.model.router import RouterOut
from marin.model.sharding import constrain, embed, gather, row_spec


class RouterBias(nnx.Variable[Array]):
    """State that a step carries to the next: the router's bias per layer and expert."""


class LossAux(NamedTuple):
    """What a loss reports beside itself. N layers, B rows, E experts."""

    ce: Float[Array, ""]
    """Mean negative log-likelihood, in nats per predicted token."""
    z_loss: Float[Array, ""]
    """`config.z_loss` times the mean squared log-normalizer; part of the loss."""
    balance_loss: Float[Array, ""]
    """Balance losses with their coefficients; part of the loss, zero unless configured."""
    tokens: Int[Array, ""]
    """Predicted tokens."""
    next_router_bias: Float[Array, "N E"]
    row_ce: Float[Array, "B"]
    """Sum of the negative log-likelihood of each row, in nats."""
    row_tokens: Int[Array, "B"]
    router_entropy: Float[Array, "N"]
    router_z: Float[Array, "N"]
    dispatch: Stats
    """Statistics of the dispatch with a leading layer dimension."""
    margins: Float[Array, "N B L E"] | None = None
    """Scores over their token's threshold, if they were asked for."""


class Block(nnx.Module):
    """One layer: attention and latent experts, each on the gated norm of the residual stream."""

    def __init__(self, config: HeroConfig, rngs: nnx.Rngs) -> None:
        self.attention_norm = GatedNorm(config, rngs)
        self.attention = Attention(config, rngs)
        self.moe_norm = GatedNorm(config, rngs)
        self.moe = LatentMoE(config, rngs)

    def __call__(
        self,
        x: Float[Array, "B L d"],
        context: Context,
        is_global: Array,
        bias: Float[Array, "E"],
        transport: Transport,
        mesh: Mesh,
    ) -> tuple[Float[Array, "B L d"], RouterOut, Stats]:
        x = x + self.attention(self.attention_norm(x), context, is_global)
        out, report, stats = self.moe(self.moe_norm(x), context, bias, transport, mesh)
        return x + out, report, stats


class Hero(nnx.Module):
    """The whole model. Weights are float32 `nnx.Param`; those of the layers are stacked."""

    def __init__(self, config: HeroConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = nnx.Param(normal(rngs, config, (config.vocab, config.hidden)))
        self.embedding_norm = GatedNorm(config, rngs)
        self.layers = nnx.vmap(lambda r: Block(config, r))(rngs.split(config.layers))
        self.final_norm = GatedNorm(config, rngs)
        self.readout = nnx.Param(normal(rngs, config, (config.vocab, config.hidden)))
        self.router_bias = RouterBias(jnp.zeros((config.layers, config.experts), jnp.float32))

    def hidden(
        self,
        batch: Batch,
        *,
        mesh: Mesh,
        qk_scale: float | Float[Array, ""] = 1.0,
        transport: Transport | None = None,
        keep_margins: bool = False,
    ) -> tuple[Float[Array, "B L d"], RouterOut, Stats]:
        """The normed output of the last layer, and each layer's reports stacked."""
        config = self.config
        rows = row_spec(3)
        context = context_of(config, batch, qk_scale)
        chosen = transport or config.make_transport()
        graph, stacked = nnx.split(self.layers)

        def body(x: Array, layer: tuple[Any, Array, Array]) -> tuple[Array, tuple[Any, Any]]:
            weights, is_global, bias = layer
            block = nnx.merge(graph, gather(weights, mesh, config.dtype, "layers/"))
            x, report, stats = block(x, context, is_global, bias, chosen, mesh)
            if not keep_margins:
                report = report._replace(margins=None)
            return constrain(x, mesh, rows), (report, stats)

        x = embed(self.embedding[...], batch.tokens, mesh, config.dtype)
        x = constrain(_normed(self.embedding_norm, x, config), mesh, rows)
        flags = jnp.asarray(config.global_layers)
        x, (report, stats) = jax.lax.scan(
            _rematerialized(body, config), x, (stacked, flags, self.router_bias[...])
        )
        return _normed(self.final_norm, x, config), report, stats

    def logits(
        self,
        batch: Batch,
        *,
        mesh: Mesh,
        qk_scale: float | Float[Array, ""] = 1.0,
        transport: Transport | None = None,
    ) -> Float[Array, "B L V"]:
        """Logits of every position in float32; for looking at small batches."""
        x, _, _ = self.hidden(batch, mesh=mesh, qk_scale=qk_scale, transport=transport)
        readout = gather(self.readout[...], mesh, x.dtype, "readout")
        readout = readout.astype(x.dtype)
        return jnp.einsum("bld,vd->blv", x, readout, preferred_element_type=jnp.float32)

    def loss(
        self,
        batch: Batch,
        *,
        mesh: Mesh,
        qk_scale: float | Float[Array, ""] = 1.0,
        transport: Transport | None = None,
        keep_margins: bool = False,
    ) -> tuple[Float[Array, ""], LossAux]:
        """Mean cross-entropy of the next token in nats plus z-loss and balance losses.

        `qk_scale` multiplies every attention logit; `transport` replaces the configured one, for a
        dropless evaluation. With `keep_margins` the report has what a router bias over several
        batches is made of, which costs B L E numbers per layer.
        """
        config = self.config
        x, report, stats = self.hidden(
            batch, mesh=mesh, qk_scale=qk_scale, transport=transport, keep_margins=keep_margins
        )
        targets = jnp.pad(batch.tokens[:, 1:], ((0, 0), (0, 1)))
        flat = constrain(x.reshape(-1, config.hidden), mesh, row_spec())
        readout = gather(self.readout[...], mesh, x.dtype, "readout")
        losses, normalizers = _cross_entropy_by_device(
            flat, readout, targets.reshape(-1), config.cross_entropy_block, mesh
        )
        mask = batch.loss_mask
        losses = jnp.where(mask, losses.reshape(mask.shape), 0)
        squares = jnp.where(mask, jnp.square(normalizers.reshape(mask.shape)), 0)
        row_tokens = jnp.sum(mask, axis=1, dtype=jnp.int32)
        tokens = jnp.sum(row_tokens)
        count = jnp.maximum(tokens, 1)
        row_ce = jnp.sum(losses, axis=1)
        ce = jnp.sum(row_ce) / count
        z_loss = config.z_loss * jnp.sum(squares) / count
        balance = config.auxiliary_balance * jnp.sum(report.auxiliary)
        balance += config.sequence_balance * jnp.sum(report.sequence)
        return ce + z_loss + balance, LossAux(
            ce=ce,
            z_loss=z_loss,
            balance_loss=balance,
            tokens=tokens,
            next_router_bias=report.next_bias,
            row_ce=row_ce,
            row_tokens=row_tokens,
            router_entropy=report.entropy,
            router_z=report.z,
            dispatch=stats,
            margins=report.margins,
        )


def _normed(norm: GatedNorm, x: Float[Array, "B L d"], config: HeroConfig) -> Float[Array, "B L d"]:
    """The gated norm, made again in the backward pass wherever layers are."""
    if config.remat == "none":
        return norm(x)
    graph, params = nnx.split(norm)
    again = jax.checkpoint(lambda params, x: nnx.merge(graph, params)(x))
    normed: Array = again(params, x)
    return normed


def _cross_entropy_by_device(
    hidden: Float[Array, "tokens d"],
    readout: Float[Array, "V d"],
    targets: Int[Array, "tokens"],
    block: int,
    mesh: Mesh,
) -> tuple[Float[Array, "tokens"], Float[Array, "tokens"]]:
    """Each device its own tokens, so that the readout's gradient is summed over devices once; the
    partitioner would sum it in every block of the vocabulary."""
    rows = row_spec()
    by_device = jax.shard_map(
        partial(cross_entropy, block=block),
        mesh=mesh,
        in_specs=(rows, P(), row_spec(1)),
        out_specs=(row_spec(1), row_spec(1)),
        check_vma=False,
    )
    pair: tuple[Array, Array] = by_device(hidden, readout, targets)
    return pair


def _rematerialized(body: Callable[..., Any], config: HeroConfig) -> Callable[..., Any]:
    """The body under the configured policy: keep everything (`none`), only the layer's input
    (`block`), or that and what the experts return in the latent (`save_moe`)."""
    if config.remat == "none":
        return body
    policy = None
    if config.remat == "save_moe":
        policy = jax.checkpoint_policies.save_only_these_names("moe")
    return jax.checkpoint(body, policy=policy, prevent_cse=False)
