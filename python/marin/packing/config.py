"""How documents become rows and rows become files."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from marin.engine import read_manifest
from marin.errors import MarinError

Policy = Literal["best-fit", "concat", "truncate"]

_NO_LIMIT = 2**32 - 1


@dataclass(frozen=True)
class PlanConfig:
    """What decides which tokens stand in which row.

    policy: `best-fit` cuts no document that fits a row, `concat` cuts at every row boundary and
      pads nothing unless `max_segments` ends a row early, `truncate` drops what a document has
      beyond one row (and reports it).
    max_segments: most documents in a row, or None.
    min_fill: least share of a row that is not padding; documents of emptier rows wait for others.
    window: documents that are packed together; bounds memory, at about 100 bytes each.
    """

    policy: Policy = "best-fit"
    max_segments: int | None = None
    min_fill: float = 0.0
    window: int = 1 << 16

    def __post_init__(self) -> None:
        if self.policy not in get_args(Policy):
            expected = ", ".join(get_args(Policy))
            raise MarinError(f"policy {self.policy!r}: expected one of {expected}")
        if self.max_segments is not None and not 1 <= self.max_segments <= _NO_LIMIT:
            raise MarinError(f"max_segments {self.max_segments}: expected at least 1")
        if not 0 <= self.min_fill <= 1:
            raise MarinError(f"min_fill {self.min_fill}: expected a share of a row from 0 to 1")
        if self.policy == "concat" and self.min_fill:
            raise MarinError(
                f"min_fill {self.min_fill} with policy concat, which fills every row; leave it 0"
            )
        if self.window < 1:
            raise MarinError(f"window {self.window}: expected at least 1 document")

    @property
    def segment_limit(self) -> int:
        return _NO_LIMIT if self.max_segments is None else self.max_segments


@dataclass(frozen=True)
class ShardConfig:
    """How rows lie in files.

    shard_tokens: tokens of a shard, padding included, rounded down to whole blocks.
    block_tokens: tokens of a record batch, the unit of checksums and of reads.
    documents: also store the ids of each row's documents.
    threads: shards written at the same time (0: one per core); does not change a byte.
    """

    shard_tokens: int = 1 << 26
    block_tokens: int = 1 << 17
    documents: bool = False
    threads: int = 0

    def __post_init__(self) -> None:
        for name in ("shard_tokens", "block_tokens"):
            if getattr(self, name) < 1:
                raise MarinError(f"{name} {getattr(self, name)}: expected at least 1 token")
        if self.threads < 0:
            raise MarinError(f"threads {self.threads}: expected 0 (one per core) or more")


def planned_as(path: Path) -> PlanConfig:
    """How the rows of a plan, or of shards, were planned. Of shards whose manifest does not say
    (it once did not) it is the default."""
    manifest = read_manifest(path)
    return PlanConfig(**manifest.summary.get("packing", {}))


def packed_as(shards: Path) -> tuple[PlanConfig, ShardConfig]:
    """How the rows of finished shards were planned, see `planned_as`, and written."""
    return planned_as(shards), ShardConfig(**read_manifest(shards).parameters)
