"""What a run says of itself: one record per step, in `metrics.jsonl` and from there in W&B."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marin.train.curriculum import Curriculum, StepPlan
from marin.train.optimizer import GROUPS
from marin.train.source import Source
from marin.train.step import StepMetrics


@dataclass(frozen=True)
class Timings:
    """Wall-clock seconds of one step and of the parts of it that the loop waited for.

    `step` runs from the end of the step before to the end of this one, without `compile` and
    `evaluation`; `data` and `checkpoint` are parts of it.
    """

    step: float
    data: float
    compile: float
    checkpoint: float
    evaluation: float

    @property
    def compute(self) -> float:
        """What is left of the step."""
        return self.step - self.data - self.checkpoint


@dataclass(frozen=True)
class Cost:
    """Training FLOPs per token by row length, and the peak FLOP/s of all devices, if known."""

    flops_per_token: Mapping[int, float]
    peak: float | None


def step_record(
    plan: StepPlan, rows: tuple[int, int], metrics: StepMetrics, timings: Timings, cost: Cost
) -> dict[str, Any]:
    """The scalars of a step; `metrics` holds NumPy arrays. Counts are exact: 64-bit sums.

    `rows` are the row that was read first and the one after the last, not those of the plan.
    """
    assigned, sender, receiver, lost = (
        int(counts.sum(dtype=np.int64))
        for counts in (
            metrics.assigned,
            metrics.dropped_sender,
            metrics.dropped_receiver,
            metrics.tokens_lost,
        )
    )
    segment = plan.segment
    speed = segment.batch_tokens / timings.step
    record: dict[str, Any] = {
        "step": plan.step,
        "tokens": plan.tokens_after,
        "first_row": rows[0],
        "next_row": rows[1],
        "seq_len": segment.seq_len,
        "batch_size": segment.batch_size,
        "phase": segment.phase,
        "loss": float(metrics.ce),
        "total_loss": float(metrics.loss),
        "z_loss": float(metrics.z_loss),
        "balance_loss": float(metrics.balance_loss),
        "predicted_tokens": int(metrics.tokens),
        "qk_scale": plan.qk_scale,
        "lr/muonh": plan.rates.muonh,
        "lr/adam": plan.rates.adam,
        "assigned": assigned,
        "dropped_sender": sender,
        "dropped_receiver": receiver,
        "drop_fraction": (sender + receiver) / max(assigned, 1),
        "tokens_lost": lost,
        "weight_lost": _share(np.asarray(metrics.weight_lost), np.asarray(metrics.weight)),
        "router_entropy": float(metrics.router_entropy.mean()),
        "router_z": float(metrics.router_z.mean()),
        "router_bias_norm": float(metrics.bias_norm.mean()),
        "time/step": timings.step,
        "time/compute": timings.compute,
        "time/data": timings.data,
        "time/compile": timings.compile,
        "time/checkpoint": timings.checkpoint,
        "time/evaluation": timings.evaluation,
        "tokens_per_second": speed,
        "flops_per_second": speed * cost.flops_per_token[segment.seq_len],
    }
    if cost.peak is not None:
        record["mfu"] = record["flops_per_second"] / cost.peak
    for kind in ("grad_norm", "update_norm", "param_norm"):
        norms = getattr(metrics, kind)
        record[kind] = float(np.sqrt(sum(np.square(norms[group]) for group in GROUPS)))
        record.update({f"{kind}/{group}": float(norms[group]) for group in GROUPS})
    return record


def expert_load(metrics: StepMetrics) -> list[list[float]]:
    """Share of the assignments of each expert, by layer, before dropping."""
    load = metrics.load.astype(np.float64)
    total = np.maximum(load.sum(axis=1, keepdims=True), 1)
    return [[round(float(share), 6) for share in layer] for layer in load / total]


def drops_by_layer(metrics: StepMetrics) -> list[float]:
    """Share of the assignments of each layer that found no place."""
    dropped = metrics.dropped_sender.astype(np.int64) + metrics.dropped_receiver
    return [float(x) for x in dropped / np.maximum(metrics.assigned, 1)]


def cursor_of(curriculum: Curriculum, source: Source, step: int) -> dict[str, Any]:
    """Where the data of a run stands before `step`, as `marin.stream` keeps it."""
    history = curriculum.batches_before(step)
    return {
        "plan": source.fingerprint_before(step),
        "next_row": sum(steps * size for steps, size in history),
        "step": step,
        "batches": [list(run) for run in history],
    }


def bias_norm_by_layer(metrics: StepMetrics) -> list[float]:
    """Norm of each layer's router bias for the next step."""
    return [float(x) for x in metrics.bias_norm]


class CellTokens:
    """Positions trained per cell so far, padding included; they sum to the record's `tokens`."""

    def __init__(self, names: tuple[str, ...], counts: Mapping[str, int]) -> None:
        self._names = names
        self._counts = np.array([counts.get(name, 0) for name in names], np.int64)

    def add(self, rows: np.ndarray, seq_len: int) -> None:
        self._counts += rows.astype(np.int64) * seq_len

    def to_json(self) -> dict[str, int]:
        return {name: int(count) for name, count in zip(self._names, self._counts, strict=True)}


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part.sum(dtype=np.float64) / max(whole.sum(dtype=np.float64), 1e-30))
