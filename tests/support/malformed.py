"""JSON values as no writer of ours leaves them."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from marin.errors import MarinError

BAD = ["x", None, -1, 0, 1.5, True, [], {}, [["x"]], float("nan"), float("inf"), 10**400]
DEEP = "[" * 100_000


def mutations(value: Any) -> Iterator[Any]:
    """`value` with each of its parts, and itself, replaced by each of `BAD`; of lists the first."""
    yield from copy.deepcopy(BAD)
    keys = list(value) if isinstance(value, dict) else range(len(value))[:1]
    for key in keys:
        inner = isinstance(value[key], dict | list)
        for changed in mutations(value[key]) if inner else copy.deepcopy(BAD):
            other = copy.copy(value)
            other[key] = changed
            yield other


def refusal(read: Callable[[], object]) -> str | None:
    """The one line with which `read` refuses what it finds; None where it takes it."""
    try:
        read()
    except MarinError as error:
        message = str(error)
        assert "\n" not in message
        return message
    return None
