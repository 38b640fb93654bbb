"""The published ladder: five widths of one recipe, and `tiny` for tests and laptops."""

from dataclasses import dataclass

from marin.errors import MarinError
from marin.model.config import HeroConfig


@dataclass(frozen=True)
class Rung:
    """One width of the ladder and the run it was published with."""

    config: HeroConfig
    batch: int
    """Rows per step."""
    steps: int
    seq_len: int = 4096
    racks: int = 1
    expert_ranks: int = 64
    """Devices of a rack, which share the experts."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole run, padding included."""
        return self.batch * self.steps * self.seq_len


def _width(hidden: int, layers: int, kv_local: int, kv_global: int) -> HeroConfig:
    return HeroConfig(
        hidden=hidden,
        layers=layers,
        heads=hidden // 128,
        kv_local=kv_local,
        kv_global=kv_global,
        latent=hidden // 2,
        expert_width=hidden // 2,
        dtype="bfloat16",
        remat="save_moe",
    )


_TINY = HeroConfig(
    hidden=64,
    layers=4,
    heads=4,
    head_dim=16,
    kv_local=2,
    kv_global=1,
    latent=32,
    expert_width=32,
    experts=8,
    top_k=2,
    vocab=512,
    window=32,
    gate_rank=16,
    cross_entropy_block=256,
)

PRESETS: dict[str, Rung] = {
    "tiny": Rung(_TINY, batch=16, steps=1_000, seq_len=128, expert_ranks=1),
    "d768": Rung(_width(768, 8, 1, 1), batch=1_024, steps=11_420, racks=1),
    "d1024": Rung(_width(1024, 12, 2, 1), batch=2_048, steps=15_276, racks=2),
    "d1536": Rung(_width(1536, 16, 3, 1), batch=6_144, steps=15_128, racks=6),
    "d2048": Rung(_width(2048, 22, 4, 2), batch=11_264, steps=20_072, racks=11),
    "d6144": Rung(_width(6144, 48, 12, 6), batch=11_264, steps=390_251, racks=11),
}


def rung(name: str) -> Rung:
    """The rung of this name; an unknown name is a `MarinError` that lists the known ones."""
    if name not in PRESETS:
        raise MarinError(f"model: no preset {name!r}: expected one of {', '.join(PRESETS)}")
    return PRESETS[name]


def preset(name: str) -> HeroConfig:
    """The configuration of this preset."""
    return rung(name).config
