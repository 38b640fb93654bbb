"""`marin report RUN`."""

from pathlib import Path
from typing import Annotated

import typer

from marin.cli.output import print_json

Run = Annotated[Path, typer.Argument(help="The directory of a run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def report(run: Run, json_output: Json = False) -> None:
    """Draw a run's metrics in one HTML page."""
    from marin.report import write_run_report

    path = write_run_report(run)
    if json_output:
        print_json({"report": str(path)})
    else:
        print(path)
