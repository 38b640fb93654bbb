"""Devices before JAX starts, virtual ones on a CPU; and the best that an accelerator can do."""

import os
from contextlib import suppress

import jax

from marin.errors import MarinError
from marin.plan.devices import DEVICES

_COUNT_FLAG = "xla_force_host_platform_device_count"

# A virtual device that waits for the others holds a thread. By default XLA aborts the process when
# they do not come within 40 s, which a busy machine with fewer cores than devices may need.
_PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 1200,
}

# Dense bfloat16 FLOP/s per device, by a part of JAX's name of it; vendors' data sheets.
_PEAKS = (
    *((device.name.upper(), device.bfloat16) for device in DEVICES.values()),
    ("B200", 2.25e15),
    ("A100", 3.12e14),
    ("TPU v6", 9.18e14),
    ("TPU v5p", 4.59e14),
    ("TPU v5 lite", 1.97e14),
    ("TPU v4", 2.75e14),
)


def peak_flops(device: jax.Device) -> float | None:
    """Peak FLOP/s of a device in bfloat16; None for one whose peak is not known here."""
    return next((peak for name, peak in _PEAKS if name in device.device_kind), None)


def ensure_devices(count: int, processes: int = 1) -> None:
    """Makes sure that JAX sees at least `count` devices, over all `processes`.

    On a CPU they are virtual and are made here, which works only before JAX has started; on an
    accelerator they are what the machine has.

    Raises:
      MarinError: there are fewer, or `processes` do not divide them.
    """
    if count % processes:
        raise MarinError(f"mesh: {count} devices cannot be cut over {processes} processes")
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"--{name}={value}" for name, value in _PATIENCE.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()
    if _COUNT_FLAG not in flags:
        # It refuses once JAX has started; what JAX sees is counted below.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count // processes)
    found = jax.devices()
    if len(found) < count:
        raise MarinError(
            f"mesh: needs {count} devices, JAX sees {len(found)} ({found[0].platform}); "
            "make an axis smaller"
        )
