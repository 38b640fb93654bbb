"""`marin simulate`: what a configuration would do, without an accelerator."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from marin.cli.options import refuse

simulate = typer.Typer(help="What a configuration would do, without an accelerator.")


@simulate.callback()
def _group() -> None:
    """Keeps `drops` a subcommand of its own."""


@simulate.command()
def drops(
    context: typer.Context,
    routing: Annotated[
        Path | None,
        typer.Option(
            help="Routing of real tokens: directory of a run, or .npz. Default: a model of "
            "documents."
        ),
    ] = None,
    layer: Annotated[
        int | None, typer.Option(help="Layer of the run's model, from 0; default: the middle one.")
    ] = None,
    at: Annotated[
        int | None, typer.Option(help="Step of the run's checkpoint; default: the newest.")
    ] = None,
    seq_len: Annotated[list[int] | None, typer.Option(help="Row length; repeatable.")] = None,
    capacity: Annotated[list[float] | None, typer.Option(help="Factor; repeatable.")] = None,
    devices: Annotated[int, typer.Option(help="Expert-parallel devices.")] = 64,
    experts: Annotated[int, typer.Option(help="Routed experts of the model of documents.")] = 384,
    top_k: Annotated[int, typer.Option(help="Experts per token of the model.")] = 8,
    spread: Annotated[float, typer.Option(help="How much documents differ in taste.")] = 1.17,
    tokens_per_device: Annotated[int, typer.Option(help="Tokens of a step on one device.")] = 65536,
    sampled: Annotated[int, typer.Option(help="Tokens per device to simulate.")] = 8192,
    seed: Annotated[int, typer.Option(help="Of the random numbers.")] = 0,
    plot: Annotated[Path | None, typer.Option(help="Writes a plot (.png, .svg, .pdf).")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="One list on stdout.")] = False,
) -> None:
    """Dropped assignments by row length, transport and capacity."""
    from rich.console import Console

    from marin.cli.output import print_table, progress_for
    from marin.cli.routed import routing_of_run
    from marin.dispatch.routings import DocumentModel, RealDocuments, read_routing
    from marin.dispatch.simulate import DropStudy, simulate_drops
    from marin.engine import check_plot
    from marin.errors import MarinError

    if plot:
        check_plot(plot, [routing] if routing else [])
    if routing is not None:
        names = ("experts", "top_k", "spread")
        refuse(context, f"of the model of documents, and {routing} has its own", *names)
    source: DocumentModel | RealDocuments = DocumentModel(experts, top_k, spread)
    of_run = routing is not None and routing.is_dir()
    if not of_run and (layer is not None or at is not None):
        raise MarinError("--layer and --at choose from a run: name its directory with --routing")
    if routing and of_run:
        source = routing_of_run(routing, at=at, layer=layer)
    elif routing:
        source = read_routing(routing)
    study = DropStudy(
        seq_lens=tuple(seq_len) if seq_len else DropStudy.seq_lens,
        capacities=tuple(capacity) if capacity else DropStudy.capacities,
        devices=devices,
        tokens_per_device=tokens_per_device,
        sampled=sampled,
        seed=seed,
    )
    study.check(source)
    with progress_for(json_output).task("row lengths", len(study.seq_lens)) as task:
        table = simulate_drops(source, study, lambda: task.advance(1))
    if plot:
        draw(table, plot)
    if json_output:
        print(json.dumps(table, indent=1))
        return
    columns = ["row", "transport", "capacity", "dropped", "tokens lost", "weight lost"]
    rows = [
        [
            row["seq_len"],
            name_of(row),
            "" if row["capacity"] is None else f"{row['capacity']:.2f}",
            *(f"{row[key]:.2%}" for key in ("dropped", "tokens_lost", "weight_lost")),
            *(f"{row[key]:.2f}" for key in ("bytes", "rows")),
        ]
        for row in table
    ]
    print_table("Drops", [*columns, "bytes", "rows"], rows, console=Console())
    print(
        "bytes: exchanged by the busiest device, over a balanced dropless exchange; "
        "rows: computed by the busiest device, over the balanced load"
    )


def name_of(row: dict[str, Any]) -> str:
    """The transport as people say it."""
    transport: str = row["transport"]
    return f"{transport} striped" if row["striped"] else transport


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """Drop share over row length, a line per transport at each capacity. Raises MarinError."""
    from matplotlib.figure import Figure

    from marin.errors import MarinError

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    names = list(dict.fromkeys(name_of(row) for row in table))
    capacities = list(dict.fromkeys(row["capacity"] for row in table if row["capacity"]))
    for color, name in enumerate(names):
        of_name = [row for row in table if name_of(row) == name]
        for strength, capacity in enumerate(capacities):
            line = [row for row in of_name if row["capacity"] in (capacity, None)]
            axes.plot(
                [row["seq_len"] for row in line],
                [100 * row["dropped"] for row in line],
                color=f"C{color}",
                alpha=1 - 0.8 * strength / len(capacities),
                marker="o",
                label=name if strength == 0 else None,
            )
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tokens per row")
    axes.set_ylabel("assignments dropped, %")
    shown = ", ".join(f"{capacity:g}" for capacity in capacities)
    axes.set_title(f"Drops at constant tokens per step (capacity {shown}: dark to light)")
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise MarinError(f"{path}: the plot cannot be written ({error})") from error
