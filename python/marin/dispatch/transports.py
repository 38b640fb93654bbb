"""The transports as values: small frozen configurations, checked when they are made."""

from dataclasses import dataclass
from typing import Any, Literal

from marin.errors import MarinError

Policy = Literal["weight", "arrival", "fair"]


@dataclass(frozen=True)
class Dense:
    """The reference: every expert on every token. Drops nothing; costs E / K times the work."""


@dataclass(frozen=True)
class Local:
    """Tokens stay where they are and experts come to them: expert weights are gathered over the
    expert axis. Drops nothing; right for one device and for evaluation of small models."""


@dataclass(frozen=True)
class PooledWave:
    """Static buffers, one pool of rows per destination device, sent in `waves` all-to-alls.

    transport_capacity: rows that a sender may send to one destination, over the balanced share
    A / n. receiver_capacity: rows that a device may compute, over its balanced share A. policy: who
    is dropped when a pool is full; `weight`: lowest combine weight first, `arrival`: last token
    first, `fair`: at the receiver every sender keeps the same number of rows, each sender its
    heaviest. stripe: interleave the rows of the expert-parallel group first (see `stripe`).
    """

    waves: int = 3
    transport_capacity: float = 1.15
    receiver_capacity: float = 1.15
    policy: Policy = "weight"
    stripe: bool = False

    def __post_init__(self) -> None:
        if self.waves < 1:
            raise MarinError(f"pooled_wave: waves is {self.waves}; at least 1 is needed")
        for name in ("transport_capacity", "receiver_capacity"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise MarinError(f"pooled_wave: {name} is {value}; a positive number is needed")
        if self.policy not in ("weight", "arrival", "fair"):
            raise MarinError(
                f"pooled_wave: policy is {self.policy!r}; expected weight, arrival or fair"
            )


@dataclass(frozen=True)
class Ring:
    """Tokens travel once around the expert axis, results with them. Drops nothing; bytes grow with
    the number of devices, so it suits small expert-parallel groups."""


@dataclass(frozen=True)
class Ragged:
    """True group lengths through a ragged all-to-all. Drops nothing by default.

    chunks: parts of the batch processed one after another; the receive buffer holds n A / chunks
    rows, which no routing can exceed. None: as many as devices. buffer_factor: a smaller buffer of
    this many balanced loads, which may drop, and counts it. policy: whom a sender drops then.
    """

    chunks: int | None = None
    buffer_factor: float | None = None
    policy: Literal["weight", "arrival"] = "weight"

    def __post_init__(self) -> None:
        if self.chunks is not None and self.chunks < 1:
            raise MarinError(f"ragged: chunks is {self.chunks}; at least 1 is needed")
        if self.buffer_factor is not None and not 0 < self.buffer_factor < float("inf"):
            raise MarinError(
                f"ragged: buffer_factor is {self.buffer_factor}; a positive number is needed"
            )
        if self.policy not in ("weight", "arrival"):
            raise MarinError(f"ragged: policy is {self.policy!r}; expected weight or arrival")


Transport = Dense | Local | Ring | PooledWave | Ragged

_BY_NAME: dict[str, type[Transport]] = {
    "dense": Dense,
    "local": Local,
    "ring": Ring,
    "pooled_wave": PooledWave,
    "ragged": Ragged,
}


def parse_transport(name: str, **options: Any) -> Transport:
    """The transport called `name`, with `options` as its fields.

    Raises MarinError for an unknown name, an unknown option or a value out of range.
    """
    if name not in _BY_NAME:
        raise MarinError(f"transport is {name!r}; expected one of {', '.join(_BY_NAME)}")
    known = _BY_NAME[name].__dataclass_fields__
    for option in options:
        if option not in known:
            raise MarinError(
                f"transport {name}: unknown option {option!r}; it has {', '.join(known) or 'none'}"
            )
    return _BY_NAME[name](**options)
