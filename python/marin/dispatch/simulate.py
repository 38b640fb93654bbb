"""How much each transport drops as rows grow longer, without an accelerator.

The tokens of one step are constant, so longer rows mean fewer documents per device, and the load of
a pool is a sum over fewer, larger correlated parts.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marin.dispatch.drops import (
    Drops,
    cell_drops,
    cell_ranks,
    deal,
    pool_ranks,
    pooled_wave_drops,
)
from marin.dispatch.routings import DocumentModel, Group, RealDocuments, simulate_group
from marin.dispatch.transports import PooledWave
from marin.errors import MarinError


@dataclass(frozen=True)
class DropStudy:
    """What to simulate. Lengths in tokens; capacities are used for sender and receiver alike."""

    seq_lens: Sequence[int] = (4096, 8192, 16384, 65536, 262144)
    capacities: Sequence[float] = (1.0, 1.15, 1.25, 1.5, 2.0)
    devices: int = 64
    tokens_per_device: int = 65536
    sampled: int = 8192
    waves: int = 3
    seed: int = 0

    def check(self, source: DocumentModel | RealDocuments) -> None:
        """Raises MarinError for sizes that do not fit together."""
        if source.experts % self.devices:
            raise MarinError(
                f"{source.experts} experts cannot be split over {self.devices} devices; "
                "choose a number of devices that divides them"
            )
        if not 1 <= source.top_k <= source.experts:
            raise MarinError(f"top-k is {source.top_k} of {source.experts} experts")
        if self.sampled % self.devices or not 0 < self.sampled <= self.tokens_per_device:
            raise MarinError(
                f"{self.sampled} sampled tokens per device: must be a multiple of the "
                f"{self.devices} devices and at most {self.tokens_per_device}, for which they stand"
            )
        if min(self.seq_lens, default=0) < 1 or min(self.capacities, default=0) <= 0:
            raise MarinError("sequence lengths and capacities must be positive")


def simulate_drops(
    source: DocumentModel | RealDocuments,
    study: DropStudy,
    done: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """One entry per length, transport and capacity; calls `done` after each length.

    dropped: share of assignments. tokens_lost: share of tokens of which every assignment was
    dropped. weight_lost: share of combine weight. bytes: what the busiest device's exchange moves,
    over the balanced dropless exchange (its rows out and back). rows: what the busiest device
    computes, over the balanced load.
    """
    study.check(source)
    table = []
    for seq_len in study.seq_lens:
        group = simulate_group(
            source,
            seq_len=seq_len,
            devices=study.devices,
            tokens_per_device=study.tokens_per_device,
            sampled=study.sampled,
            seed=study.seed,
        )
        table += [{"seq_len": seq_len, **row} for row in drop_table(group, source.experts, study)]
        done()
    return table


def drop_table(group: Group, num_experts: int, study: DropStudy) -> list[dict[str, Any]]:
    """What every transport makes of one group's routing, for all capacities."""
    plain = (*group, np.ones(group.experts.shape[:2], bool))
    striped = (deal(group.experts), deal(group.weights), plain[2])
    n, k = group.experts.shape[0], group.experts.shape[2]
    in_cell = cell_ranks(*plain, num_experts)
    in_pool = {
        False: pool_ranks(*plain, num_experts, "weight"),
        True: pool_ranks(*striped, num_experts, "weight"),
    }

    def row(
        transport: str, capacity: float | None, stripe: bool, drops: Drops, sent: float | None
    ) -> dict[str, Any]:
        experts, weights, _ = striped if stripe else plain
        lost = drops.sender | drops.receiver
        kept = np.bincount((experts // (num_experts // n))[~lost], minlength=n)
        busiest = float(kept.max()) * n / experts.size
        return {
            "transport": transport,
            "capacity": capacity,
            "striped": stripe,
            "dropped": float(lost.mean()),
            "tokens_lost": float(lost.all(axis=2).mean()),
            "weight_lost": float(weights[lost].sum() / weights.sum()),
            "bytes": (busiest if sent is None else sent) + stripe / k,
            "rows": busiest,
        }

    table = []
    for capacity in study.capacities:
        drops = cell_drops(*plain, num_experts, capacity, in_cell)
        table.append(row("cell", capacity, False, drops, capacity))
        transport = PooledWave(study.waves, capacity, capacity)
        for stripe in (False, True):
            experts, weights, valid = striped if stripe else plain
            rank = in_pool[stripe]
            drops = pooled_wave_drops(experts, weights, valid, num_experts, transport, rank)
            table.append(row("pooled_wave", capacity, stripe, drops, capacity))
    nothing = np.zeros(group.experts.shape, bool)
    table.append(row("ragged", None, False, Drops(nothing, nothing), None))
    return table
