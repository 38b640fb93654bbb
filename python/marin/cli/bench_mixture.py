"""`marin bench mixture`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from marin.cli.output import print_json, print_table, progress_for

Peers = Annotated[bool, typer.Option("--peers", help="Measure the other libraries too.")]
Only = Annotated[str, typer.Option(help="Which of them: grain,megatron-core,...; default: all.")]
Save = Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def bench_mixture(
    peers: Peers = False, only: Only = "", save: Save = None, json_output: Json = False
) -> None:
    """Speed and exactness of quotas and order on the published run, beside other mixers."""
    from marin.bench.mixture import PEERS, measure
    from marin.engine import write_json

    chosen = [name for name in only.split(",") if name] or list(PEERS)
    found = measure(chosen if peers else [], progress=progress_for(json_output))
    if save is not None:
        write_json(save, found)
    if json_output:
        print_json(found)
        return
    columns = ("tool", "version", "metric", "value", "unit")
    rows = [tuple(line[column] for column in columns) for line in found["results"]]
    print_table("Mixture", columns, rows, console=Console())
