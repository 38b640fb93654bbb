"""The quantile-balanced router, in float32.

Scores `s = x W_r`; experts are chosen by `s + b` with a bias b per expert that has no gradient.
The (k+1)-th biased score of a token is its threshold alpha; beta of an expert is the exact upper
k/E quantile of `s - alpha` over all valid tokens of the global batch, so that the bias
`-(beta - mean(beta))` of the next step would have let each expert pass its share of this one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from marin.model.config import HeroConfig
from marin.model.init import normal
from marin.model.quantile import largest, quantile_rank
from marin.model.sharding import row_spec


class Choice(NamedTuple):
    """Chosen experts and combine weights of every token; weights of one token sum to one number."""

    experts: Int[Array, "B L k"]
    weights: Float[Array, "B L k"]


class RouterOut(NamedTuple):
    """What one layer's router reports; means are over valid tokens."""

    next_bias: Float[Array, "E"]
    entropy: Float[Array, ""]
    """Of softmax(s), in nats."""
    z: Float[Array, ""]
    """Mean of logsumexp(s)^2; logged, never optimized."""
    auxiliary: Float[Array, ""]
    """Load-balancing loss over the global batch; 1 at perfect balance."""
    sequence: Float[Array, ""]
    """The same within each row, averaged over rows that have tokens."""
    margins: Float[Array, "B L E"] | None
    """`s - alpha`, of which beta is a quantile; for a quantile over more than this batch."""


class Router(nnx.Module):
    """Scores of tokens against experts, and the choice made from them."""

    def __init__(self, config: HeroConfig, rngs: nnx.Rngs) -> None:
        self.config = config
        self.weight = nnx.Param(normal(rngs, config, (config.hidden, config.experts)))

    def __call__(
        self,
        x: Float[Array, "B L d"],
        bias: Float[Array, "E"],
        valid: Bool[Array, "B L"],
        mesh: Mesh,
    ) -> tuple[Choice, RouterOut]:
        k = self.config.top_k
        scores = jnp.matmul(
            x.astype(jnp.float32), self.weight[...], precision=jax.lax.Precision.HIGHEST
        )
        fixed = jax.lax.stop_gradient(scores)
        best, experts = _top(fixed + bias, k + 1, mesh)
        experts, alpha = experts[..., :k], best[..., k]
        margins = fixed - alpha[..., None]
        gates = jax.nn.sigmoid(jnp.take_along_axis(scores, experts, axis=-1))
        weights = self.config.combine_sum * gates / jnp.sum(gates, axis=-1, keepdims=True)
        auxiliary, sequence = self._balance(scores, experts, valid)
        tokens = jnp.maximum(jnp.sum(valid), 1)
        normalizer = jax.nn.logsumexp(fixed, axis=-1)
        share = jnp.exp(fixed - normalizer[..., None])
        entropy = normalizer - jnp.sum(share * fixed, axis=-1)
        return Choice(experts, weights), RouterOut(
            next_bias=next_bias(margins, valid, bias, k),
            entropy=jnp.sum(jnp.where(valid, entropy, 0)) / tokens,
            z=jnp.sum(jnp.where(valid, jnp.square(normalizer), 0)) / tokens,
            auxiliary=auxiliary,
            sequence=sequence,
            margins=margins,
        )

    def _balance(
        self, scores: Float[Array, "B L E"], experts: Int[Array, "B L k"], valid: Bool[Array, "B L"]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        zero = jnp.float32(0)
        if not (self.config.auxiliary_balance or self.config.sequence_balance):
            return zero, zero
        chosen, probability, tokens = row_loads(scores, experts, valid)
        sequence = balance_loss(chosen, probability, tokens, self.config.top_k)
        rows = jnp.maximum(jnp.sum(tokens > 0), 1)
        auxiliary = balance_loss(
            jnp.sum(chosen, 0), jnp.sum(probability, 0), jnp.sum(tokens), self.config.top_k
        )
        return auxiliary, jnp.sum(sequence) / rows


def _top(
    scores: Float[Array, "B L E"], count: int, mesh: Mesh
) -> tuple[Float[Array, "B L count"], Int[Array, "B L count"]]:
    """The largest scores of each token and their experts, found on the device that has the token:
    the partitioner would gather the scores of the whole batch on every device."""

    def top(local: Array) -> tuple[Array, Array]:
        best, experts = jax.lax.top_k(local, count)
        return best, experts

    spec = row_spec(3)
    return jax.shard_map(top, mesh=mesh, in_specs=spec, out_specs=(spec, spec), check_vma=False)(
        scores
    )


def next_bias(
    margins: Float[Array, "B L E"], valid: Bool[Array, "B L"], bias: Float[Array, "E"], top_k: int
) -> Float[Array, "E"]:
    """`-(beta - mean(beta))` from `s - alpha`; the old bias where no token is valid.

    beta is the `floor(n k / E) + 1`-th largest of n: at most `floor(n k / E)` tokens exceed it.
    """
    experts = margins.shape[-1]
    rank = quantile_rank(jnp.sum(valid, dtype=jnp.int32), top_k, experts)
    beta = largest(margins.reshape(-1, experts), valid.reshape(-1), rank)
    return jnp.where(jnp.any(valid), jnp.mean(beta) - beta, bias)


def row_loads(
    scores: Float[Array, "B L E"], experts: Int[Array, "B L k"], valid: Bool[Array, "B L"]
) -> tuple[Float[Array, "B E"], Float[Array, "B E"], Float[Array, "B"]]:
    """Per row: assignments of each expert, sums of its share of sigmoid scores, valid tokens."""
    gates = jax.nn.sigmoid(scores)
    share = gates / jnp.sum(gates, axis=-1, keepdims=True)
    chosen = jax.nn.one_hot(experts, scores.shape[-1]).sum(2)
    keep = valid[..., None]
    return (
        jnp.sum(jnp.where(keep, chosen, 0), 1),
        jnp.sum(jnp.where(keep, share, 0), 1),
        jnp.sum(valid, 1, dtype=jnp.float32),
    )


def balance_loss(
    chosen: Float[Array, "... E"],
    probability: Float[Array, "... E"],
    tokens: Float[Array, "..."],
    top_k: int,
) -> Float[Array, "..."]:
    """`E * sum_e f_e P_e` with f the share of assignments and P the mean share of the scores.

    One at perfect balance, where its gradient is finite: no root and no division by a spread.
    Fedus et al., Switch Transformers, arXiv 2101.03961, equation 4.
    """
    load = jnp.sum(chosen * probability, axis=-1)
    return chosen.shape[-1] * load / (top_k * jnp.square(jnp.maximum(tokens, 1)))
