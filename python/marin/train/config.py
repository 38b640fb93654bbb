"""What a run is: frozen, plain, and written to `config.toml` as it was resolved."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar

from marin.errors import MarinError
from marin.model import HeroConfig
from marin.train.curriculum import QK_EXTENSION

RULES = ("finite", "grad_norm", "drops", "forecast", "data_wait")  # of marin.train.watch

_STRICT_KEYS = {"extra": "forbid"}  # for pydantic, which validates these classes at the edge


@dataclass(frozen=True)
class MeshShape:
    """Devices along each axis of the mesh; see `marin.model.sharding`."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT_KEYS

    replica: int = 1
    data: int = 1
    expert: int = 1
    model: int = 1

    @property
    def devices(self) -> int:
        return self.replica * self.data * self.expert * self.model


@dataclass(frozen=True)
class CheckpointConfig:
    """A checkpoint every `every` steps and after the last one; the newest `keep` are kept."""

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT_KEYS

    every: int = 100
    keep: int = 2


@dataclass(frozen=True)
class EvaluationConfig:
    """The run is evaluated `times` times, evenly, the last time at its end; 0 for never.

    `tokens` limits the held-out tokens of each domain. `seq_len` is one of the run's row lengths,
    by default its first, which keeps evaluations comparable over the whole run. `tokenizer` is the
    `tokenizer.json` that made the tokens, for bits per byte; by default it is looked for beside the
    store.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT_KEYS

    times: int = 20
    tokens: int = 65_536
    seq_len: int | None = None
    tokenizer: Path | None = None


@dataclass(frozen=True)
class LogConfig:
    """`detail_every`: steps between lines that also hold expert loads and tokens per cell.

    `peak_flops` of one device, for MFU; known by itself for usual accelerators.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT_KEYS

    wandb: bool = True
    project: str = "marin"
    detail_every: int = 10
    peak_flops: float | None = None


@dataclass(frozen=True)
class WatchConfig:
    """Limits of the rules in `marin.train.watch`; a rule in `stop_on` ends the run.

    `grad_norm` is a multiple of the recent median, the others are fractions. `forecast` is the file
    of a band to be in: a registration of `marin ladder register`, whose metric is compared where a
    record has it, or a `.json` list of `{"tokens": ..., "low": ..., "high": ...}` for the training
    loss.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT_KEYS

    grad_norm: float = 4.0
    drop_fraction: float = 0.1
    data_wait: float = 0.05
    forecast: Path | None = None
    stop_on: tuple[str, ...] = ("finite",)


@dataclass(frozen=True)
class TrainConfig:
    """One run: data in `shards`, everything it writes in `run`.

    `rate_scale` multiplies the compute-scaled learning rates. `microbatches` are accumulated to one
    batch. `stop_at` ends the process after that many steps of the curriculum without changing it.
    The first `profile` steps after the first two of a process are traced into `RUN/profile`. The
    last two are of one start: a run's `config.toml` does not keep them.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = _STRICT_KEYS

    shards: Path
    run: Path
    model: HeroConfig
    mesh: MeshShape = field(default_factory=MeshShape)
    seed: int = 0
    rate_scale: float = 1.0
    qk_extension: float = QK_EXTENSION
    microbatches: int = 1
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    log: LogConfig = field(default_factory=LogConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    stop_at: int | None = None
    profile: int | None = None

    def __post_init__(self) -> None:
        for name, value in _whole_numbers(self):
            if value < 1:
                raise MarinError(f"{name} = {value}: expected a whole number of 1 or more")
        if not 0 < self.rate_scale < inf:
            raise MarinError(f"rate_scale = {self.rate_scale}: expected a number above 0")
        if not isfinite(self.qk_extension):
            raise MarinError(f"qk_extension = {self.qk_extension}: expected a number")
        if not 0 <= self.seed < 2**63:
            raise MarinError(f"seed = {self.seed}: expected a whole number from 0 to 2^63 - 1")
        if self.evaluation.times < 0:
            raise MarinError(f"evaluation.times = {self.evaluation.times}: expected 0 or more")
        if self.log.peak_flops is not None and not self.log.peak_flops > 0:
            raise MarinError(f"log.peak_flops = {self.log.peak_flops}: expected a number above 0")
        if self.microbatches > 1 and self.model.auxiliary_balance:
            raise MarinError(
                f"microbatches = {self.microbatches} with model.auxiliary_balance = "
                f"{self.model.auxiliary_balance}: that loss is of the whole batch and no sum over "
                "its parts; use model.sequence_balance, or one microbatch"
            )
        for rule in self.watch.stop_on:
            if rule not in RULES:
                raise MarinError(
                    f"watch.stop_on: no rule {rule!r}; expected some of {', '.join(RULES)}"
                )

    @property
    def parts(self) -> int:
        """Equal parts into which every batch is cut."""
        mesh = self.mesh
        return mesh.replica * mesh.data * mesh.expert * self.microbatches

    def to_dict(self) -> dict[str, Any]:
        """Plain values: absolute paths as strings, nothing that is None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def _whole_numbers(config: TrainConfig) -> Iterator[tuple[str, int]]:
    yield "microbatches", config.microbatches
    for axis, size in asdict(config.mesh).items():
        yield f"mesh.{axis}", size
    yield "checkpoint.every", config.checkpoint.every
    yield "checkpoint.keep", config.checkpoint.keep
    yield "log.detail_every", config.log.detail_every
    yield "evaluation.tokens", config.evaluation.tokens
    optional = {
        "evaluation.seq_len": config.evaluation.seq_len,
        "stop_at": config.stop_at,
        "profile": config.profile,
    }
    yield from ((name, value) for name, value in optional.items() if value is not None)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items() if item is not None}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return str(value.absolute()) if isinstance(value, Path) else value
