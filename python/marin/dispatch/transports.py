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
    heaviest.
    """

    waves: int = 3
    transport_capacity: float = 1.15
    receiver_capacity: float = 1.15
    policy: Policy = "weight"

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


Transport = Dense | Local | PooledWave

_BY_NAME: dict[str, type[Transport]] = {
    "dense": Dense,
    "local": Local,
    "pooled_wave": PooledWave,
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
