"""`marin bench mixture`, `marin bench pack` and `marin bench stream`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from marin.cli.options import refuse
from marin.cli.output import print_json, print_table, progress_for

Peers = Annotated[bool, typer.Option("--peers", help="Measure the other libraries too.")]
Only = Annotated[str, typer.Option(help="Which of them, with commas; default: all.")]
Root = Annotated[Path | None, typer.Option(help="Keeps the corpus here for another time.")]
Save = Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def bench_mixture(
    context: typer.Context,
    peers: Peers = False,
    only: Only = "",
    save: Save = None,
    json_output: Json = False,
) -> None:
    """Speed and exactness of quotas and order on the published run, beside other mixers."""
    from marin.bench.mixture import PEERS, measure
    from marin.bench.results import check_outputs

    check_outputs(save)
    tools = _tools(context, peers, only, PEERS)
    _report("Mixture", measure(tools, progress=progress_for(json_output)), save, json_output)


def bench_pack(
    context: typer.Context,
    peers: Peers = False,
    only: Only = "",
    root: Root = None,
    save: Save = None,
    json_output: Json = False,
) -> None:
    """Plans, rows and shards of a corpus of 128 M tokens, beside other packers."""
    from marin.bench.packing import PEERS, measure
    from marin.bench.results import check_outputs

    check_outputs(save, root)
    tools = _tools(context, peers, only, PEERS)
    _report("Packing", measure(tools, root, progress=progress_for(json_output)), save, json_output)


def bench_stream(
    context: typer.Context,
    peers: Peers = False,
    only: Only = "",
    root: Root = None,
    save: Save = None,
    json_output: Json = False,
) -> None:
    """Batches from shards and from the store on one core, beside other loaders."""
    from marin.bench.results import check_outputs
    from marin.bench.stream import PEERS, measure

    check_outputs(save, root)
    tools = _tools(context, peers, only, PEERS)
    _report("Stream", measure(tools, root, progress=progress_for(json_output)), save, json_output)


def _tools(context: typer.Context, peers: bool, only: str, known: Iterable[str]) -> list[str]:
    if not peers:
        refuse(context, "names other libraries; add --peers", "only")
    named = [name for name in only.split(",") if name]
    return (named or list(known)) if peers else []


def _report(title: str, found: dict[str, Any], save: Path | None, json_output: bool) -> None:
    from marin.engine import write_json

    if save is not None:
        write_json(save, found)
    if json_output:
        print_json(found)
        return
    columns = ("tool", "version", "metric", "value", "unit")
    rows = [tuple(line[column] for column in columns) for line in found["results"]]
    print_table(title, columns, rows, console=Console())
