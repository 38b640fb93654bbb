"""The meaning of every part, written from its formula in float64 NumPy, slow and obvious.

Arrays are as in the parts themselves; `p` is a dictionary of weights by path below the part, e.g.
`attention["query_norm/gain"]`.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from marin.model.config import HeroConfig

F = NDArray[np.float64]
I = NDArray[np.int64]  # noqa: E741
B = NDArray[np.bool_]
Weights = Mapping[str, F]


def sigmoid(x: F) -> F:
    return 1 / (1 + np.exp(-x))


def silu(x: F) -> F:
    return x * sigmoid(x)


def below(p: Weights, prefix: str) -> dict[str, F]:
    """The weights under a path, by the rest of their paths."""
    return {k.removeprefix(prefix + "/"): v for k, v in p.items() if k.startswith(prefix + "/")}


def rms_norm(x: F, gain: F, epsilon: float) -> F:
    normed: F = gain * x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + epsilon)
    return normed


def gated_norm(x: F, p: Weights, epsilon: float) -> F:
    n = rms_norm(x, p["norm/gain"], epsilon)
    return n * sigmoid(silu(n @ p["down"]) @ p["up"])


def short_conv(x: F, weight: F, segments: I) -> F:
    y = np.zeros_like(x)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(weight.shape[0]):
                inside = i - j >= 0 and segments[row, i - j] == segments[row, i]
                if j == 0 or (inside and segments[row, i] > 0):
                    y[row, i] += weight[j] * x[row, i - j]
    return y


def rotate(x: F, positions: I, theta: float) -> F:
    pairs = x.shape[-1] // 4
    y = x.copy()
    for i in range(pairs):
        angle = (positions * theta ** (-i / pairs))[..., None]
        first, second = x[..., i], x[..., i + pairs]
        y[..., i] = first * np.cos(angle) - second * np.sin(angle)
        y[..., i + pairs] = second * np.cos(angle) + first * np.sin(angle)
    return y


def attend(q: F, k: F, v: F, segments: I, window: int | None) -> F:
    rows, length, heads, dim = q.shape
    group = heads // k.shape[2]
    out = np.zeros_like(q)
    for row in range(rows):
        for i in range(length):
            first = 0 if window is None else max(0, i - window + 1)
            seen = [j for j in range(first, i + 1) if segments[row, j] == segments[row, i]]
            for h in range(heads):
                scores = k[row, seen, h // group] @ q[row, i, h] / np.sqrt(dim)
                weights = np.exp(scores - scores.max())
                out[row, i, h] = weights / weights.sum() @ v[row, seen, h // group]
    return out


def exclude_self(out: F, v: F) -> F:
    own = np.repeat(v, out.shape[2] // v.shape[2], axis=2)
    along = np.sum(out * own, -1, keepdims=True) / np.sum(own * own, -1, keepdims=True)
    without: F = out - along * own
    return without


def attention(
    x: F, p: Weights, c: HeroConfig, segments: I, positions: I, is_global: bool, qk_scale: float
) -> F:
    def heads(y: F) -> F:
        return y.reshape(*y.shape[:2], -1, c.head_dim)

    q = rms_norm(heads(x @ p["query"]), p["query_norm/gain"], c.norm_epsilon)
    k = heads(short_conv(x @ p["key"], p["key_conv/weight"], segments))
    k = rms_norm(k, p["key_norm/gain"], c.norm_epsilon)
    v = heads(x @ p["value"])
    q = q * c.query_multiplier * qk_scale
    if is_global:
        k, v = k[:, :, : c.kv_global], v[:, :, : c.kv_global]
    else:
        q, k = rotate(q, positions, c.rope_theta), rotate(k, positions, c.rope_theta)
    out = exclude_self(attend(q, k, v, segments, None if is_global else c.window), v)
    out = out * (2 * sigmoid(x @ p["gate"]))[..., None]
    out = out.reshape(*x.shape[:2], -1) @ p["output"]
    return short_conv(out, p["output_conv/weight"], segments)


def route(x: F, weight: F, bias: F, c: HeroConfig) -> tuple[I, F, F, F]:
    """Chosen experts in descending biased score, their combine weights, scores and thresholds."""
    scores = x @ weight
    order = np.argsort(-(scores + bias), axis=-1, kind="stable")
    chosen = order[..., : c.top_k]
    gates = sigmoid(np.take_along_axis(scores, chosen, -1))
    weights = c.combine_sum * gates / gates.sum(-1, keepdims=True)
    last = order[..., c.top_k : c.top_k + 1]
    alpha = np.take_along_axis(scores + bias, last, -1)[..., 0]
    return chosen, weights, scores, alpha


def next_bias(scores: F, alpha: F, valid: B, top_k: int) -> F:
    margins = (scores - alpha[..., None])[valid]
    exceeding = len(margins) * top_k // scores.shape[-1]
    beta = -np.sort(-margins, axis=0)[exceeding]
    centred: F = -(beta - beta.mean())
    return centred


def balance_loss(scores: F, chosen: I, valid: B, top_k: int) -> float:
    """E sum_e f_e P_e over the valid tokens."""
    experts = scores.shape[-1]
    share = sigmoid(scores)
    share /= share.sum(-1, keepdims=True)
    load = np.bincount(chosen[valid].ravel(), minlength=experts) / chosen[valid].size
    return float(experts * np.sum(load * share[valid].mean(0)))


def swiglu(x: F, gate: F, up: F, down: F) -> F:
    return (silu(x @ gate) * (x @ up)) @ down


def latent_moe(x: F, p: Weights, c: HeroConfig, bias: F, segments: I) -> F:
    """Dropless."""
    chosen, weights, _, _ = route(x, p["router/weight"], bias, c)
    latent = rms_norm(x @ p["latent_down"], p["latent_norm/gain"], c.norm_epsilon)
    routed = np.zeros_like(latent)
    for e in range(c.experts):
        out = swiglu(latent, p["experts/gate"][e], p["experts/up"][e], p["experts/down"][e])
        routed += np.sum(weights * (chosen == e), -1, keepdims=True) * out
    routed[segments == 0] = 0
    y = routed @ p["latent_up"]
    for s in range(c.shared_experts):
        y = y + swiglu(x, p["shared/gate"][s], p["shared/up"][s], p["shared/down"][s])
    return short_conv(y, p["output_conv/weight"], segments)


def cross_entropy(hidden: F, readout: F, targets: I) -> tuple[F, F]:
    logits = hidden @ readout.T
    peak = logits.max(-1)
    normalizer = peak + np.log(np.exp(logits - peak[..., None]).sum(-1))
    return normalizer - np.take_along_axis(logits, targets[..., None], -1)[..., 0], normalizer


def logits(
    p: Weights, c: HeroConfig, bias: F, tokens: I, segments: I, positions: I, qk_scale: float = 1.0
) -> F:
    """Logits of the whole model; `p` by the paths of its parameters, layers stacked."""
    return hidden(p, c, bias, tokens, segments, positions, qk_scale) @ p["readout"].T


def hidden(
    p: Weights, c: HeroConfig, bias: F, tokens: I, segments: I, positions: I, qk_scale: float = 1.0
) -> F:
    x = gated_norm(p["embedding"][tokens], below(p, "embedding_norm"), c.norm_epsilon)
    for n, is_global in enumerate(c.global_layers):
        layer = {path: stacked[n] for path, stacked in below(p, "layers").items()}
        h = gated_norm(x, below(layer, "attention_norm"), c.norm_epsilon)
        x = x + attention(h, below(layer, "attention"), c, segments, positions, is_global, qk_scale)
        h = gated_norm(x, below(layer, "moe_norm"), c.norm_epsilon)
        x = x + latent_moe(h, below(layer, "moe"), c, bias[n], segments)
    return gated_norm(x, below(p, "final_norm"), c.norm_epsilon)


def loss(
    p: Weights, c: HeroConfig, bias: F, tokens: I, segments: I, positions: I, mask: B
) -> float:
    """Cross-entropy and z-loss of the next tokens under the mask; balance losses left out."""
    targets = np.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    x = hidden(p, c, bias, tokens, segments, positions)
    losses, normalizers = cross_entropy(x, p["readout"], targets)
    return float(losses[mask].mean() + c.z_loss * (normalizers[mask] ** 2).mean())
