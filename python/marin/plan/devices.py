"""Accelerators by name: the peak figures of their makers' data sheets, never measured ones."""

from dataclasses import dataclass

from marin.errors import MarinError


@dataclass(frozen=True)
class Device:
    """One accelerator and its place in a group that shares a fast network.

    Rates are per second and device: FLOPs of dense bfloat16 products and of plain float32, bytes
    of memory, and bytes out over the group's network (`link`) and to other groups (`uplink`).
    """

    name: str
    bfloat16: float
    float32: float
    memory: int
    bandwidth: float
    link: float
    uplink: float
    group: int
    """Devices of one group (a rack or a node) that share the experts."""
    node: int
    """Devices of one host."""
    cores: int
    """Processor cores of one host: two Grace processors of 72, two x86 processors of 56."""


DEVICES: dict[str, Device] = {
    # Blackwell: 5 PFLOP/s is the sparse figure. A rack has 72 devices, 64 of which are used.
    "gb200": Device(
        "gb200", 2.5e15, 8e13, 186 * 10**9, 8e12, 9e11, 5e10, group=64, node=4, cores=144
    ),
    "h200": Device(
        "h200", 9.89e14, 6.7e13, 141 * 10**9, 4.8e12, 4.5e11, 5e10, group=8, node=8, cores=112
    ),
    "h100": Device(
        "h100", 9.89e14, 6.7e13, 80 * 10**9, 3.35e12, 4.5e11, 5e10, group=8, node=8, cores=112
    ),
}


def device(name: str) -> Device:
    """The device of this name; an unknown one is a `MarinError` that lists the known ones."""
    if name not in DEVICES:
        raise MarinError(f"device {name!r}: expected one of {', '.join(DEVICES)}")
    return DEVICES[name]
