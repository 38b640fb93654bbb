"""The one exception for mistakes of the user, shown as one line with exit code 2."""


class MarinError(Exception):
    """A mistake in the input, the configuration or the arguments.

    The message is one line: which file, row or key; what was found; what was expected or what to
    do. The command line prints it without a traceback and exits with code 2.
    """
