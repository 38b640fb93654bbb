"""A whole run: its step, memory, data, checkpoints and days."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from marin.errors import MarinError
from marin.model import memory
from marin.model.presets import Rung
from marin.plan.cost import Step, step_cost
from marin.plan.devices import Device
from marin.plan.factors import Factors, assumptions

_TOKEN_BYTES = 4
"""Of a token in a store (uint32) and in a shard (int32)."""
_TEXT_BYTES_PER_TOKEN = 4.4
"""Of UTF-8 web text with a vocabulary of 128 k; an assumption."""
_DAY = 86_400
_MOST_MICROBATCHES = 64
_MOST_RACKS = 1 << 20
_MOST_ASSIGNMENTS = 1 << 30
"""Of tokens to experts on one device; the model counts them in int32."""


@dataclass(frozen=True)
class Plan:
    """What `plan` found; `as_json` has every figure with its unit in the key."""

    model: str
    device: Device
    groups: int
    rows: int
    seq_len: int
    tokens: int
    step: Step
    memory: memory.DeviceBytes
    microbatches: int
    """Parts of a batch, so that a device's memory suffices; 0 where no number of them helps."""
    device_bytes: int
    factors: Factors

    @property
    def devices(self) -> int:
        return self.groups * self.device.group

    def as_json(self) -> dict[str, Any]:
        step, factors = self.step, self.factors
        rate = step.tokens_per_second
        exchange = next(part for part in step.parts if part.name == "all-to-all")
        held = self.memory.weights + self.memory.optimizer
        checkpoint = held * self.device.group
        window = 60 * factors.checkpoint_minutes * factors.checkpoint_share
        days = self.tokens / rate / _DAY
        return {
            "model": self.model,
            "device": dataclasses.asdict(self.device),
            "racks": self.groups,
            "devices": self.devices,
            "rows": self.rows,
            "seq_len": self.seq_len,
            "tokens": self.tokens,
            "step_seconds": step.seconds,
            "tokens_per_second": rate,
            "tokens_per_second_per_rack": rate / self.groups,
            "mfu": step.mfu(self.device, self.devices),
            "flops_per_token": step.model_flops / step.tokens,
            "parts": [{**dataclasses.asdict(part), "seconds": part.seconds} for part in step.parts],
            "all_to_all": {"bytes": exchange.amount, "seconds": exchange.seconds},
            "memory": {
                **dataclasses.asdict(self.memory),
                "microbatches": self.microbatches,
                "needed": self.device_bytes,
                "available": self.device.memory,
                "fits": self.microbatches > 0,
            },
            "days": days / factors.sustained,
            "days_in_steps": days,
            "data": {
                "shard_bytes": self.tokens * _TOKEN_BYTES,
                "store_bytes": self.tokens * _TOKEN_BYTES,
                "text_bytes": self.tokens * _TEXT_BYTES_PER_TOKEN,
                "read_bytes_per_second": rate * _TOKEN_BYTES,
                "tokens_per_second_per_node": rate / self.devices * self.device.node,
            },
            "checkpoint": {
                "bytes": checkpoint,
                "bytes_per_second": checkpoint / window,
                "bytes_per_second_per_node": checkpoint / window / self._writers,
            },
            "assumptions": [*assumptions(factors), *_fixed_assumptions()],
        }

    @property
    def _writers(self) -> int:
        return max(1, self.device.group // self.device.node)


def plan(
    name: str,
    rung: Rung,
    device: Device,
    *,
    groups: int,
    rows: int | None = None,
    seq_len: int | None = None,
    factors: Factors = Factors(),
) -> Plan:
    """The run of a rung on `groups` groups of a device (a rack of gb200, a node of h100).

    Args:
      rows: rows of a batch; default: the rung's rows per rack times `groups`, at the same tokens
        per batch for another `seq_len`.

    Raises:
      MarinError: rows, experts or groups do not divide over the devices, or one is out of range.
    """
    if not 1 <= groups <= _MOST_RACKS:
        raise MarinError(f"{groups} racks: expected 1 to {_MOST_RACKS:,}")
    length = seq_len or rung.seq_len
    devices = groups * device.group
    if rows is None:
        tokens = rung.batch * rung.seq_len // rung.racks * groups
        rows = max(1, tokens // length // devices) * devices
    most = _MOST_ASSIGNMENTS // rung.config.top_k
    if rows * length > most * devices:
        raise MarinError(
            f"{rows} rows of {length} tokens over {devices} devices: expected at most {most:,} "
            "tokens on each"
        )
    step = step_cost(rung.config, device, groups=groups, rows=rows, seq_len=length, factors=factors)
    mesh = memory.abstract_mesh({"replica": groups, "expert": device.group})
    held = memory.device_bytes(rung.config, mesh, rows, length)
    local_rows = rows // devices
    microbatches, needed = _fitting(held, local_rows, device.memory)
    return Plan(
        name, device, groups, rows, length, rung.tokens, step, held, microbatches, needed, factors
    )


def _fitting(held: memory.DeviceBytes, local_rows: int, available: int) -> tuple[int, int]:
    """The fewest microbatches with which a step fits, or 0, and the bytes it then needs.

    Activations shrink with the microbatch; from two on, gradients are kept twice: the sum so far
    and the new ones.
    """
    fixed = held.weights + held.gradients + held.optimizer
    moving = held.saved_activations + held.layer_activations + held.logits
    needed = held.total
    for count in range(1, min(local_rows, _MOST_MICROBATCHES) + 1):
        if local_rows % count:
            continue
        needed = fixed + (held.gradients if count > 1 else 0) + math.ceil(moving / count)
        if needed <= available:
            return count, needed
    return 0, needed


def _fixed_assumptions() -> list[dict[str, object]]:
    return [
        {"name": "token_bytes", "value": _TOKEN_BYTES, "meaning": "bytes of a stored token"},
        {
            "name": "text_bytes_per_token",
            "value": _TEXT_BYTES_PER_TOKEN,
            "meaning": "bytes of text per token; every token is read once",
        },
        {"name": "overlap", "value": 0, "meaning": "parts of a step run one after the other"},
        {
            "name": "rows",
            "value": "one document each",
            "meaning": "attention's cost is that of full rows; document masks make it less",
        },
        {
            "name": "replicas",
            "value": "whole optimizer state each",
            "meaning": "a checkpoint is written by one group's hosts, each its own part",
        },
    ]
