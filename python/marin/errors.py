"""The one exception for mistakes of the user, shown as one line with exit code 2."""


class MarinError(Exception):
    """A mistake in the input, the configuration or the arguments.

    The message is one line: which file, row or key; what was found; what was expected or what to
    do. The command line prints it without a traceback and exits with code 2.
    """


MALFORMED = (
    ArithmeticError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What comes of reading JSON or TOML that is none, or whose values are of other types or sizes."""
