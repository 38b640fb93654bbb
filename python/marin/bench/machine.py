"""The machine that figures were measured on, in the words of the operating system."""

import os
import platform
from pathlib import Path
from typing import Any


def describe_machine() -> dict[str, Any]:
    return {
        "processor": _field("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _field(path: str, name: str) -> str:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), "")


def peak_bytes() -> int:
    """The most memory that this process had resident. Not `ru_maxrss`, which a child takes over
    from its parent.
    """
    return int(_field("/proc/self/status", "VmHWM").split()[0]) * 1024
