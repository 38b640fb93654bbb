"""How tests compile: what runs for moments costs more to optimize than it gains."""

from marin.compat import QUICK_COMPILE


def quick_flags() -> list[str]:
    """`QUICK_COMPILE` for `XLA_FLAGS`: for a whole process and its children."""
    return [f"--{name}={str(value).lower()}" for name, value in QUICK_COMPILE.items()]
