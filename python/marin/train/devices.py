"""Devices before JAX starts: virtual ones on a CPU."""

import os
from contextlib import suppress

import jax

from marin.errors import MarinError

_COUNT_FLAG = "xla_force_host_platform_device_count"

# A virtual device that waits for the others holds a thread. By default XLA aborts the process when
# they do not come within 40 s, which a busy machine with fewer cores than devices may need.
_PATIENCE = {
    "xla_cpu_collective_call_warn_stuck_timeout_seconds": 120,
    "xla_cpu_collective_call_terminate_timeout_seconds": 1200,
}


def ensure_devices(count: int) -> None:
    """Makes sure that JAX sees at least `count` devices.

    On a CPU they are virtual and are made here, which works only before JAX has started; on an
    accelerator they are what the machine has.

    Raises:
      MarinError: there are fewer.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    missing = [f"--{name}={value}" for name, value in _PATIENCE.items() if name not in flags]
    os.environ["XLA_FLAGS"] = " ".join([flags, *missing]).strip()
    if _COUNT_FLAG not in flags:
        # It refuses once JAX has started; what JAX sees is counted below.
        with suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", count)
    found = jax.devices()
    if len(found) < count:
        raise MarinError(
            f"mesh: needs {count} devices, JAX sees {len(found)} ({found[0].platform}); "
            "make an axis smaller"
        )
