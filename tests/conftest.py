"""Fixtures for every part. Devices are virtual: JAX sees 8 of them on one CPU."""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["WANDB_MODE"] = "offline"
os.environ["WANDB_SILENT"] = "true"
