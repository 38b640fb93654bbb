"""What pydantic found wrong in a configuration, in the words of this package."""

import sys
from collections.abc import Mapping
from typing import Any

from marin.errors import MarinError

_LARGEST = sys.float_info.max
_EXPECTED = {
    "tuple_type": "expected a list",
    "list_type": "expected a list",
    "dict_type": "expected a table",
    "int_type": "expected a whole number",
    "int_parsing": "expected a whole number",
    "int_from_float": "expected a whole number",
    "float_type": "expected a number",
    "float_parsing": "expected a number",
    "bool_type": "expected true or false",
    "bool_parsing": "expected true or false",
    "string_type": "expected text in quotes",
    "path_type": "expected a path in quotes",
    "missing": "it is missing",
}


def expected(problem: Mapping[str, Any]) -> str:
    """What one entry of `ValidationError.errors()` wants to see instead."""
    if problem["type"] == "literal_error":
        return f"expected {problem['ctx']['expected']}"
    message = str(problem["msg"]).partition("\n")[0]
    return _EXPECTED.get(problem["type"], message.replace("Input should be", "expected"))


def is_finite(value: object) -> bool:
    """Whether a value is a number that a float can hold: no bool, no NaN, not endless."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -_LARGEST <= value <= _LARGEST


def is_count(value: object) -> bool:
    """Whether a value is a whole number from 0 to 2^63 - 1."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def is_text(value: object) -> bool:
    """Whether a value is text that can be written: no half of a surrogate pair."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


CELL_NAME = "1 to 200 bytes of printable text without / and \\, and not . or .."
"""What `is_cell_name` expects."""
_CELL_NAME_BYTES = 200


def is_cell_name(value: object) -> bool:
    """Whether a value can name a cell, and with it folders and files."""
    if not isinstance(value, str) or not value.isprintable() or value in ("", ".", ".."):
        return False
    return not {"/", "\\"} & set(value) and len(value.encode()) <= _CELL_NAME_BYTES


def check_range(key: str, value: float, low: float, high: float) -> None:
    """Raises `MarinError` unless low <= value <= high."""
    if not low <= value <= high:
        raise MarinError(f"{key} = {value}: expected {low:,} to {high:,}")
