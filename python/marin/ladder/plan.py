"""The rungs of one recipe: their sizes, batches, steps, rates and cost.

Every rung sees the same tokens per active parameter; everything that is not size (experts, top-k,
capacity, data, row length) is the big run's. For the published big run the rungs are the published
ones; for another they stand at the same fractions of its width, with depth as width^0.78 (the
published rungs' mean) and batches as the square root of tokens.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from marin.errors import MarinError
from marin.model import HeroConfig, preset
from marin.model.count import parts, train_flops_per_token
from marin.model.presets import PRESETS
from marin.train.config import TrainConfig
from marin.train.edge import CONFIG_NAME, write_config
from marin.train.model_file import read_model
from marin.train.rates import compute_scaled_rates
from marin.validation import is_finite

SHARDS_SCRIPT = "shards.sh"
TOKENS_PER_PARAMETER = 791.0  # active ones; of the published ladder
_PUBLISHED = ("d768", "d1024", "d1536", "d2048", "d6144")
_WIDTHS = (1 / 8, 1 / 6, 1 / 4, 1 / 3)  # of the big run's
_DEPTH_POWER = 0.78
_BATCH_POWER = 0.5
_KEYS = {"batch", "seq_len", "tokens_per_parameter"}
_LARGEST = 1e12  # of each of them; beyond any run, and figures made of it are still floats


@dataclass(frozen=True)
class PlannedRung:
    """One run to train; `share` is its FLOPs over the big run's."""

    name: str
    model: HeroConfig
    batch: int
    seq_len: int
    steps: int
    share: float = 0.0

    @property
    def tokens(self) -> int:
        return self.batch * self.seq_len * self.steps

    @property
    def train_flops(self) -> float:
        return _flops_per_token(self.model, self.seq_len) * self.tokens

    def answer(self) -> dict[str, Any]:
        """The rung's line in the table and in JSON."""
        active, total = _parameters(self.model)
        rates = compute_scaled_rates(self.tokens, self.model.hidden, self.batch * self.seq_len)
        return {
            "name": self.name,
            "hidden": self.model.hidden,
            "layers": self.model.layers,
            "heads": self.model.heads,
            "kv_local": self.model.kv_local,
            "kv_global": self.model.kv_global,
            "batch": self.batch,
            "seq_len": self.seq_len,
            "steps": self.steps,
            "tokens": self.tokens,
            "active_params": active,
            "total_params": total,
            "train_flops": self.train_flops,
            "muonh_peak": rates.muonh,
            "adam_peak": rates.adam,
            "share": self.share,
        }


def plan(hero: Path | None = None) -> tuple[PlannedRung, ...]:
    """The rungs from the smallest to the big run itself, which comes last.

    Args:
      hero: TOML with `[model]` (a preset or fields, as `marin train` takes it) and `[ladder]`:
        `batch` in rows, `seq_len`, `tokens_per_parameter`. Without it, the published ladder.

    Raises:
      MarinError: the file cannot be read, or a key is unknown or wrong.
    """
    model, settings = (preset(_PUBLISHED[-1]), {}) if hero is None else _read(hero)
    published = PRESETS[_PUBLISHED[-1]]
    batch = int(settings.get("batch", published.batch))
    seq_len = int(settings.get("seq_len", published.seq_len))
    ratio = float(settings.get("tokens_per_parameter", TOKENS_PER_PARAMETER))
    if model == published.config and not settings.keys() & {"batch", "seq_len"}:
        sizes = [(name, PRESETS[name].config, PRESETS[name].batch) for name in _PUBLISHED]
    else:
        sizes = [
            *(
                (f"d{small.hidden}", small, _batch(small, model, batch))
                for small in _smaller(model)
            ),
            (f"d{model.hidden}", model, batch),
        ]
    rungs = [
        PlannedRung(name, config, rows, seq_len, _steps(config, rows * seq_len, ratio))
        for name, config, rows in sizes
    ]
    whole = rungs[-1].train_flops
    return tuple(dataclasses.replace(rung, share=rung.train_flops / whole) for rung in rungs)


def write_configs(rungs: tuple[PlannedRung, ...], out: Path) -> list[Path]:
    """Writes `OUT/<rung>/config.toml`, a `marin train` configuration of each rung.

    Each expects its packed rows in `shards` and trains into `run`, both beside the file. Batch, row
    length and steps are those of the shards: `shards.sh MIXTURE STORE` beside it makes them so.

    Raises:
      MarinError: one of them exists.
    """
    paths = [out / rung.name / CONFIG_NAME for rung in rungs]
    for path in paths:
        if path.exists():
            raise MarinError(f"{path}: exists; choose another directory for the plan")
    for rung, path in zip(rungs, paths, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / SHARDS_SCRIPT).write_text(shards_script(rung))
        config = TrainConfig(path.parent / "shards", path.parent / "run", rung.model)
        write_config(config, path.parent)
    return paths


def shards_script(rung: PlannedRung) -> str:
    """The shell commands that make a rung's shards of a mixture and a store."""
    return f"""\
# Usage: sh {SHARDS_SCRIPT} MIXTURE STORE
# The shards of {rung.name}: {rung.steps:,} steps of {rung.batch:,} rows of {rung.seq_len:,} tokens.
set -e
here=$(dirname "$0")
marin mix plan "$1" --row-length 0:{rung.seq_len} --batch-tokens {rung.batch * rung.seq_len} \\
    --horizon {rung.tokens} --out "$here/schedule.json"
marin pack "$2" --schedule "$here/schedule.json" --out "$here/packed"
ln -sfn "$(cd "$here" && ls -td packed/shards-* | head -n 1)" "$here/shards"
"""


# Counting traces the whole model, which takes a large part of a second.
@cache
def _parameters(model: HeroConfig) -> tuple[int, int]:
    """Active and total parameters."""
    counted = parts(model).values()
    return sum(part.active for part in counted), sum(part.total for part in counted)


@cache
def _flops_per_token(model: HeroConfig, seq_len: int) -> float:
    return train_flops_per_token(model, seq_len)


def _smaller(model: HeroConfig) -> list[HeroConfig]:
    """The smaller rungs: whole heads, the big run's proportions, at least one KV head."""
    found: list[HeroConfig] = []
    for width in _WIDTHS:
        heads = round(model.heads * width)
        if heads < 1 or heads in [rung.heads for rung in found]:
            continue
        share = heads / model.heads
        kv_local = _divisor(heads, model.kv_local * share)
        found.append(
            dataclasses.replace(
                model,
                hidden=round(model.hidden * share),
                layers=max(1, round(model.layers * share**_DEPTH_POWER)),
                heads=heads,
                kv_local=kv_local,
                kv_global=_divisor(kv_local, model.kv_global * share),
                latent=round(model.latent * share),
                expert_width=round(model.expert_width * share),
            )
        )
    if len(found) < 3:
        raise MarinError(
            f"model: {model.heads} heads leave {len(found)} smaller rungs, and a fit needs 3; take "
            "a model with more heads"
        )
    return found


def _divisor(number: int, near: float) -> int:
    """The divisor of `number` that is closest to `near`, the smaller of two."""
    return min(
        (candidate for candidate in range(1, number + 1) if number % candidate == 0),
        key=lambda candidate: (abs(candidate - near), candidate),
    )


def _batch(small: HeroConfig, hero: HeroConfig, batch: int) -> int:
    share = float(_parameters(small)[0] / _parameters(hero)[0])
    return max(1, round(batch * float(share**_BATCH_POWER)))


def _steps(model: HeroConfig, batch_tokens: int, ratio: float) -> int:
    return max(1, round(ratio * _parameters(model)[0] / batch_tokens))


def _read(path: Path) -> tuple[HeroConfig, Mapping[str, Any]]:
    model, tables = read_model(path)
    settings = tables.get("ladder", {})
    if not isinstance(settings, dict):
        raise MarinError(f"{path}: ladder is {settings!r}; expected a table [ladder]")
    for key, value in settings.items():
        if key not in _KEYS:
            raise MarinError(
                f"{path}: ladder.{key}: unknown key; known: {', '.join(sorted(_KEYS))}"
            )
        whole = key == "tokens_per_parameter" or isinstance(value, int)
        if not is_finite(value) or not whole or not 0 < value <= _LARGEST:
            raise MarinError(
                f"{path}: ladder.{key} is {value!r:.40}; expected a positive number up to "
                f"{_LARGEST:g}"
            )
    return model, settings
