"""The feed-forward part of one layer: routed experts in a latent, and shared experts."""

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from marin.dispatch import Experts, Routing, Stats, Transport, moe
from marin.model.batch import Context
from marin.model.config import HeroConfig
from marin.model.conv import ShortConv
from marin.model.init import normal
from marin.model.norm import RMSNorm
from marin.model.product import product
from marin.model.router import Router, RouterOut


class SwiGLU(nnx.Module):
    """A stack of SwiGLU experts `(silu(x gate) * (x up)) down`."""

    def __init__(
        self, config: HeroConfig, count: int, width: int, inner: int, rngs: nnx.Rngs
    ) -> None:
        self.gate = nnx.Param(normal(rngs, config, (count, width, inner)))
        self.up = nnx.Param(normal(rngs, config, (count, width, inner)))
        self.down = nnx.Param(normal(rngs, config, (count, inner, width)))

    def sum(self, x: Float[Array, "B L width"]) -> Float[Array, "B L width"]:
        """The sum of all experts' outputs."""
        gate, up = (product("bld,sdm->blsm", x, w[...]) for w in (self.gate, self.up))
        return product("blsm,smd->bld", jax.nn.silu(gate) * up, self.down[...])


class LatentMoE(nnx.Module):
    """Shared experts on the full-width token plus routed experts in a narrower latent.

    The latent has a learnable RMS norm of its own before dispatch. A token whose assignments are
    all dropped still has its shared experts.
    """

    def __init__(self, config: HeroConfig, rngs: nnx.Rngs) -> None:
        self.router = Router(config, rngs)
        self.latent_down = nnx.Param(normal(rngs, config, (config.hidden, config.latent)))
        self.latent_norm = RMSNorm(config.latent, config.norm_epsilon)
        self.experts = SwiGLU(config, config.experts, config.latent, config.expert_width, rngs)
        self.latent_up = nnx.Param(normal(rngs, config, (config.latent, config.hidden)))
        self.shared = SwiGLU(
            config, config.shared_experts, config.hidden, config.expert_width, rngs
        )
        self.output_conv = ShortConv(config.hidden, config.conv_taps)

    def __call__(
        self,
        x: Float[Array, "B L d"],
        context: Context,
        bias: Float[Array, "E"],
        transport: Transport,
        mesh: Mesh,
    ) -> tuple[Float[Array, "B L d"], RouterOut, Stats]:
        out, report, stats = self.mix(x, context.valid, bias, transport, mesh)
        return self.output_conv(out, context.tap_masks), report, stats

    def mix(
        self,
        x: Float[Array, "B L d"],
        valid: Bool[Array, "B L"],
        bias: Float[Array, "E"],
        transport: Transport,
        mesh: Mesh,
    ) -> tuple[Float[Array, "B L d"], RouterOut, Stats]:
        """Routed and shared experts; what the output convolution reads."""
        choice, report = self.router(x, bias, valid, mesh)
        latent = self.latent_norm(product("bld,dk->blk", x, self.latent_down[...]))
        routed, stats = moe(
            latent.reshape(-1, latent.shape[-1]),
            Routing(
                experts=choice.experts.reshape(-1, choice.experts.shape[-1]),
                weights=choice.weights.reshape(-1, choice.weights.shape[-1]),
                valid=valid.reshape(-1),
            ),
            Experts(self.experts.gate[...], self.experts.up[...], self.experts.down[...]),
            transport=transport,
            mesh=mesh,
        )
        routed = checkpoint_name(routed, "moe")
        out = product("blk,kd->bld", routed.reshape(latent.shape), self.latent_up[...])
        return out + self.shared.sum(x), report, stats
