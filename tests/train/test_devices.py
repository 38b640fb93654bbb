"""The peak of an accelerator, by the name that JAX gives it."""

from types import SimpleNamespace
from typing import Any

import pytest

from marin.plan import DEVICES
from marin.train.devices import peak_flops


@pytest.mark.parametrize(
    ("kind", "peak"),
    [
        ("NVIDIA H200", DEVICES["h200"].bfloat16),
        ("NVIDIA GB200", DEVICES["gb200"].bfloat16),
        ("NVIDIA B200", 2.25e15),
        ("TPU v5 lite", 1.97e14),
        ("cpu", None),
    ],
)
def test_a_peak_is_known_by_the_devices_name(kind: str, peak: float | None) -> None:
    device: Any = SimpleNamespace(device_kind=kind)
    assert peak_flops(device) == peak
