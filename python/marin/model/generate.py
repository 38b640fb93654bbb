"""Continuing a prompt token by token with a key-value cache.

Every layer keeps its keys and values of all positions and the last inputs of its convolutions. One
function extends the cache by any number of positions: the whole prompt first, then one at a time.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from marin.dispatch import Local
from marin.errors import MarinError
from marin.model.attention import Attention, exclude_self
from marin.model.config import HeroConfig
from marin.model.hero import Block, Hero
from marin.model.rope import rope_angles, rotate

_HIDDEN_SCORE = -1e30


class Cache(NamedTuple):
    """State of all layers (leading dimension N) after `length` positions; S positions fit."""

    keys: Float[Array, "N B S K D"]
    """Rotated in local layers, as they are in global ones."""
    values: Float[Array, "N B S K D"]
    key_tail: Float[Array, "N B taps-1 K*D"]
    attention_tail: Float[Array, "N B taps-1 d"]
    moe_tail: Float[Array, "N B taps-1 d"]
    length: Int[Array, ""]


def empty_cache(config: HeroConfig, batch: int, size: int) -> Cache:
    """A cache of `batch` documents that have not begun, for up to `size` positions."""

    def zeros(*shape: int) -> Array:
        return jnp.zeros((config.layers, batch, *shape), config.dtype)

    tail = config.conv_taps - 1
    return Cache(
        keys=zeros(size, config.kv_local, config.head_dim),
        values=zeros(size, config.kv_local, config.head_dim),
        key_tail=zeros(tail, config.kv_local * config.head_dim),
        attention_tail=zeros(tail, config.hidden),
        moe_tail=zeros(tail, config.hidden),
        length=jnp.int32(0),
    )


def extend(
    model: Hero,
    cache: Cache,
    tokens: Int[Array, "B T"],
    *,
    mesh: Mesh,
    qk_scale: float = 1.0,
    last: bool = False,
) -> tuple[Float[Array, "B t V"], Cache]:
    """Logits of T tokens that follow those in the cache, or of the last of them alone, and the
    cache with them. Dropless."""
    config = model.config
    positions = cache.length + jnp.arange(tokens.shape[1])
    angles = rope_angles(positions[None], config.head_dim, config.rope_theta)
    graph, stacked = nnx.split(model.layers)

    def body(x: Array, layer: Any) -> tuple[Array, Cache]:
        weights, is_global, bias, before = layer
        block: Block = nnx.merge(graph, weights)
        held = before._replace(length=cache.length)
        normed = block.attention_norm(x)
        out, held = _attend(block.attention, normed, held, positions, angles, is_global, qk_scale)
        x = x + out
        valid = jnp.ones(x.shape[:2], bool)
        out, _, _ = block.moe.mix(block.moe_norm(x), valid, bias, Local(), mesh)
        out, moe_tail = block.moe.output_conv.extend(out, held.moe_tail)
        return x + out, held._replace(moe_tail=moe_tail, length=before.length)

    x = model.embedding_norm(jnp.take(model.embedding[...], tokens, axis=0).astype(config.dtype))
    per_layer = cache._replace(length=jnp.zeros(config.layers, jnp.int32))
    layers = (stacked, jnp.asarray(config.global_layers), model.router_bias[...], per_layer)
    x, after = jax.lax.scan(body, x, layers)
    x = model.final_norm(x[:, -1:] if last else x)
    logits = jnp.einsum(
        "btd,vd->btv", x, model.readout[...].astype(x.dtype), preferred_element_type=jnp.float32
    )
    return logits, after._replace(length=cache.length + tokens.shape[1])


def _attend(
    attention: Attention,
    x: Float[Array, "B T d"],
    cache: Cache,
    positions: Int[Array, "T"],
    angles: Float[Array, "1 T pairs"],
    is_global: Array,
    qk_scale: float,
) -> tuple[Float[Array, "B T d"], Cache]:
    config = attention.config
    convolved, key_tail = attention.key_conv.extend(attention.raw_keys(x), cache.key_tail)
    query, key, value = (
        attention.queries(x, qk_scale),
        attention.keys(convolved),
        attention.values(x),
    )
    query = jnp.where(is_global, query, rotate(query, angles))
    key = jnp.where(is_global, key, rotate(key, angles))
    keys = jax.lax.dynamic_update_slice_in_dim(cache.keys, key, cache.length, 1)
    values = jax.lax.dynamic_update_slice_in_dim(cache.values, value, cache.length, 1)
    distance = positions[:, None] - jnp.arange(keys.shape[1])[None]
    window = jnp.where(is_global, keys.shape[1], config.window)
    seen = (distance >= 0) & (distance < window)

    def with_heads(stored: int) -> Any:
        def run() -> Array:
            own, k, v = (y[:, :, :stored] for y in (value, keys, values))
            q = query.reshape(*x.shape[:2], stored, -1, config.head_dim)
            scores = jnp.einsum("bqkgd,btkd->bkgqt", q, k, preferred_element_type=jnp.float32)
            scores = jnp.where(seen, scores * config.head_dim**-0.5, _HIDDEN_SCORE)
            weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
            return exclude_self(
                jnp.einsum("bkgqt,btkd->bqkgd", weights, v).reshape(query.shape), own
            )

        return run

    out = jax.lax.cond(is_global, with_heads(config.kv_global), with_heads(config.kv_local))
    mixed, attention_tail = attention.output_conv.extend(
        attention.mix_heads(out, x), cache.attention_tail
    )
    return mixed, cache._replace(
        keys=keys, values=values, key_tail=key_tail, attention_tail=attention_tail
    )


def generate(
    model: Hero,
    prompt: Int[Array, "B P"],
    *,
    count: int,
    mesh: Mesh,
    seed: int = 0,
    temperature: float = 0.0,
    top_k: int = 0,
    qk_scale: float = 1.0,
) -> Int[Array, "B count"]:
    """`count` tokens after each prompt: the likeliest at temperature 0, else drawn from
    softmax(logits / temperature), from the `top_k` likeliest only where that is above 0.

    Raises `MarinError` for an empty prompt or a value out of range.
    """
    for name, value, least in (
        ("prompt length", prompt.shape[1], 1),
        ("count", count, 1),
        ("temperature", temperature, 0),
        ("top_k", top_k, 0),
    ):
        if not value >= least:
            raise MarinError(f"generate: {name} = {value}: expected at least {least}")
    graph, state = nnx.split(model)
    kept = min(top_k, model.config.vocab)

    def pick(logits: Float[Array, "B V"], key: Array) -> Int[Array, "B"]:
        if temperature == 0:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        if kept:
            least = jax.lax.top_k(logits, kept)[0][:, -1:]
            logits = jnp.where(logits < least, -jnp.inf, logits)
        return jax.random.categorical(key, logits / temperature).astype(jnp.int32)

    @jax.jit
    def run(state: Any, prompt: Array, key: Array) -> Array:
        model: Hero = nnx.merge(graph, state)
        keys = jax.random.split(key, count)
        cache = empty_cache(model.config, prompt.shape[0], prompt.shape[1] + count)
        logits, cache = extend(model, cache, prompt, mesh=mesh, qk_scale=qk_scale, last=True)
        first = pick(logits[:, -1], keys[0])

        def step(carry: tuple[Array, Cache], key: Array) -> tuple[tuple[Array, Cache], Array]:
            token, cache = carry
            logits, cache = extend(model, cache, token[:, None], mesh=mesh, qk_scale=qk_scale)
            chosen = pick(logits[:, -1], key)
            return (chosen, cache), chosen

        _, rest = jax.lax.scan(step, (first, cache), keys[1:])
        return jnp.concatenate((first[:, None], rest.T), axis=1)

    generated: Array = run(state, prompt, jax.random.key(seed))
    return generated
