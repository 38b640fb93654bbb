"""The command line; see `marin --help`."""

from marin.cli.app import main

__all__ = ["main"]
