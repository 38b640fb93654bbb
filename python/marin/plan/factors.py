"""The parts of the cost model that are neither counted nor in a data sheet."""

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Factors:
    """Efficiencies and habits, each with what it stands for.

    They are round numbers, chosen once for all models by what was published: the d6144 run's
    throughput and days, and the d2048 rung's throughput. So these agree because they were fitted;
    three figures cannot tell eight numbers apart, and single parts of a step are estimates.
    """

    matrix: float = 0.65
    """Large bfloat16 products, over the data sheet's dense peak."""
    attention: float = 0.35
    """Fused attention, over the same peak: its softmax does not run on the matrix units."""
    plain: float = 0.60
    """Float32 products of the router, over the float32 peak."""
    memory: float = 0.55
    """Element-wise passes, permutations and pool buffers, over the memory's bandwidth."""
    network: float = 0.70
    """Collectives, inside a group and between groups, over the links' bandwidth."""
    sustained: float = 17 / 24
    """Of the time, spent in steps. The d2048 rung sustained 17 of its steps' 24 M tokens/s; the
    rest is evaluation, checkpoints, restarts and waiting for repairs."""
    checkpoint_minutes: float = 30.0
    """Between two checkpoints."""
    checkpoint_share: float = 0.10
    """Of that time, in which a checkpoint must have left the devices."""


NOTES = {
    "matrix": "share of the bfloat16 peak that large products reach",
    "attention": "share of the bfloat16 peak that fused attention reaches",
    "plain": "share of the float32 peak that the router's products reach",
    "memory": "share of the memory bandwidth that passes over activations reach",
    "network": "share of the link bandwidth that collectives reach",
    "sustained": "share of the time spent in steps, as the d2048 rung's 17 of 24 M tokens/s",
    "checkpoint_minutes": "minutes between checkpoints",
    "checkpoint_share": "share of that time in which a checkpoint is written",
}


def assumptions(factors: Factors) -> list[dict[str, object]]:
    """Every factor with its value and what it means."""
    return [
        {"name": field.name, "value": getattr(factors, field.name), "meaning": NOTES[field.name]}
        for field in fields(factors)
    ]
