"""`marin doctor`."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console

from marin.cli.output import print_json, print_table

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def doctor(json_output: Json = False) -> None:
    """What works here, what is missing and how to get it; exits 0 when the core works."""
    from marin.doctor import examine, works

    checks = examine()
    works_here = works(checks)
    if json_output:
        print_json({"works": works_here, "checks": [asdict(check) for check in checks]})
    else:
        rows = [(check.state, check.name, check.found, check.remedy) for check in checks]
        print_table("This machine", ("", "what", "found", "to do"), rows, console=Console())
        typer.echo("The core works." if works_here else "The core does not work: see 'missing'.")
    if not works_here:
        raise typer.Exit(1)
