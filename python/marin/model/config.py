"""The configuration of a hero model: every size and constant of the architecture.

Symbols used all through `marin.model`: B rows, L positions, d hidden, N layers, H query heads, K
stored key-value heads, D head dimension, E experts, k routed experts per token, S shared experts,
w latent width, m expert width, V vocabulary.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

from marin.dispatch import Transport, parse_transport
from marin.dispatch.routings import COMBINE_SUM
from marin.errors import MarinError

Remat = Literal["none", "block", "save_moe"]
ComputeType = Literal["float32", "bfloat16"]

_CHOICES = {
    "remat": ("none", "block", "save_moe"),
    "dtype": ("float32", "bfloat16"),
    "attention": ("auto", "reference", "cudnn"),
}


@dataclass(frozen=True, kw_only=True)
class HeroConfig:
    """Sizes and constants; validated when made. `MarinError` names the field and the value."""

    hidden: int
    layers: int
    heads: int
    kv_local: int
    """Key-value heads stored by every layer; a local layer uses all of them."""
    kv_global: int
    """A global layer uses the first `kv_global` of the stored key-value heads."""
    latent: int
    expert_width: int
    head_dim: int = 128
    experts: int = 384
    top_k: int = 8
    shared_experts: int = 2
    vocab: int = 128_256
    window: int = 2048
    """Keys a query of a local layer sees, its own included, in positions."""
    global_every: int = 4
    """Layers `global_every`, `2 * global_every`, ... (from 1) are global, and so is the last."""
    gate_rank: int = 128
    conv_taps: int = 4
    rope_theta: float = 10_000.0
    query_multiplier: float = 1.3
    combine_sum: float = COMBINE_SUM
    """Sum of the combine weights of one token."""
    init_scale: float = 0.5
    """Standard deviation of the initial weights times sqrt(hidden)."""
    norm_epsilon: float = 1e-6
    z_loss: float = 1e-4
    """Coefficient of the squared log-normalizer of the final logits."""
    auxiliary_balance: float = 0.0
    """Coefficient of the load-balancing loss over the global batch, summed over layers."""
    sequence_balance: float = 0.0
    """Coefficient of the same loss taken within each row and averaged over rows."""
    transport: str = "pooled_wave"
    """A name of `marin.dispatch`; may change at any step. The five fields that follow are of
    `pooled_wave` alone and change nothing for others, where they are checked and kept, so that a
    run can change its transport and change it back."""
    waves: int = 3
    transport_capacity: float = 1.15
    receiver_capacity: float = 1.15
    drop_policy: str = "weight"
    stripe: bool = False
    attention: str = "auto"
    dtype: ComputeType = "float32"
    """Type of activations and of weights at use; master weights and the router are float32."""
    remat: Remat = "block"
    cross_entropy_block: int = 8192
    """Vocabulary entries whose logits exist at one time."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _CHOICES:
                if value not in _CHOICES[field.name]:
                    self._refuse(field.name, f"one of {', '.join(_CHOICES[field.name])}")
            elif field.type is bool:
                if not isinstance(value, bool):
                    self._refuse(field.name, "true or false")
            elif field.type is int:
                if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                    self._refuse(field.name, "a whole number of 1 or more")
            elif field.type is float and (
                isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0
            ):
                self._refuse(field.name, "a number of 0 or more")
        self._relate()
        self.make_transport()

    def _relate(self) -> None:
        if self.heads % self.kv_local:
            self._refuse("kv_local", f"a divisor of heads = {self.heads}")
        if self.heads % self.kv_global:
            self._refuse("kv_global", f"a divisor of heads = {self.heads}")
        if self.kv_global > self.kv_local:
            self._refuse("kv_global", f"at most kv_local = {self.kv_local}")
        if self.top_k >= self.experts:
            self._refuse("top_k", f"fewer than experts = {self.experts}: one more is the threshold")
        if self.head_dim % 4:
            self._refuse("head_dim", "a multiple of 4: half of it turns in pairs")
        for name in ("rope_theta", "norm_epsilon", "combine_sum", "query_multiplier"):
            if not getattr(self, name) > 0:
                self._refuse(name, "a number above 0")

    def _refuse(self, name: str, expected: str) -> None:
        raise MarinError(f"model: {name} = {getattr(self, name)!r}: expected {expected}")

    @property
    def global_layers(self) -> tuple[bool, ...]:
        """Whether each layer attends to the whole document, first layer first."""
        last = self.layers - 1
        return tuple((i + 1) % self.global_every == 0 or i == last for i in range(self.layers))

    def make_transport(self) -> Transport:
        """The configured transport; its own errors name what is wrong.

        Only `pooled_wave` has settings here. `ragged` is made dropless, with as many chunks as
        devices; `Ragged(chunks, buffer_factor, policy)` itself is for code that passes a transport
        to `Hero.loss` or `marin.dispatch.moe`.
        """
        pooled = parse_transport(
            "pooled_wave",
            waves=self.waves,
            transport_capacity=self.transport_capacity,
            receiver_capacity=self.receiver_capacity,
            policy=self.drop_policy,
            stripe=self.stripe,
        )
        return pooled if self.transport == "pooled_wave" else parse_transport(self.transport)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "HeroConfig":
        """The configuration with these fields; unknown and missing names are named."""
        known = {field.name for field in fields(cls)}
        for name in values:
            if name not in known:
                raise MarinError(f"model: unknown field {name!r}: expected one of {sorted(known)}")
        try:
            return cls(**values)
        except TypeError as error:
            raise MarinError(f"model: {str(error).replace('HeroConfig.__init__() ', '')}") from None
