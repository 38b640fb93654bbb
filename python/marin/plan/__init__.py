"""What a big run would take, from a cost model whose every assumption is listed."""

from marin.plan.answer import Plan, plan
from marin.plan.cost import Part, Step, step_cost
from marin.plan.devices import DEVICES, Device, device
from marin.plan.factors import Factors

__all__ = ["DEVICES", "Device", "Factors", "Part", "Plan", "Step", "device", "plan", "step_cost"]
