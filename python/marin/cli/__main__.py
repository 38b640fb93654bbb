"""`python -m marin.cli` is the command `marin`."""

from marin.cli.app import main

main()
