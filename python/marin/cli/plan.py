"""`marin plan MODEL`."""

from typing import Annotated, Any

import typer
from rich.console import Console

from marin.cli.output import print_json, print_table

Model = Annotated[str, typer.Argument(help="A preset: d768 to d6144.")]
DeviceName = Annotated[str, typer.Option("--device", help="gb200, h200 or h100.")]
Racks = Annotated[
    int | None,
    typer.Option(min=1, help="Groups that share the experts: racks, or nodes of h100/h200."),
]
Rows = Annotated[
    int | None, typer.Option(min=1, help="Rows per batch; default: the preset's per rack.")
]
SeqLen = Annotated[int | None, typer.Option(min=1, help="Tokens per row; default: the preset's.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def plan(
    model: Model,
    device: DeviceName = "gb200",
    racks: Racks = None,
    rows: Rows = None,
    seq_len: SeqLen = None,
    json_output: Json = False,
) -> None:
    """Step time, memory, data, checkpoints and days of a big run, from a cost model."""
    from marin.model.presets import rung
    from marin.plan import device as named
    from marin.plan import plan as make_plan

    found = rung(model)
    answer = make_plan(
        model, found, named(device), groups=racks or found.racks, rows=rows, seq_len=seq_len
    ).as_json()
    if json_output:
        print_json(answer)
    else:
        _print(answer)


def _print(answer: dict[str, Any]) -> None:
    console = Console()
    seconds = answer["step_seconds"]
    title = (
        f"{answer['model']} on {answer['devices']:,} {answer['device']['name']}, "
        f"{answer['rows']:,} rows of {answer['seq_len']:,}"
    )
    rows = [
        [part["name"], f"{part['seconds']:.3f}", f"{100 * part['seconds'] / seconds:.1f}",
         f"{part['amount']:.3g} {part['unit']}", f"{part['rate']:.3g} {part['unit']}/s"]
        for part in answer["parts"]
    ]  # fmt: skip
    columns = ("part of a step", "s", "%", "per device", "at")
    print_table(title, columns, rows, console=console)
    held, data, kept = answer["memory"], answer["data"], answer["checkpoint"]
    fits = (
        f"with {held['microbatches']} microbatches"
        if held["fits"]
        else "[bold]does not fit[/], however many microbatches"
    )
    console.print(
        f"step {seconds:.2f} s, {answer['tokens_per_second'] / 1e6:.2f} M tokens/s "
        f"({answer['tokens_per_second_per_rack']:,.0f} per rack), MFU {answer['mfu']:.1%}\n"
        f"memory {held['needed'] / 2**30:.1f} of {held['available'] / 2**30:.1f} GiB per device, "
        f"{fits}\n"
        f"all-to-alls {answer['all_to_all']['bytes'] / 1e9:.1f} GB per device and step, "
        f"{answer['all_to_all']['seconds']:.2f} s\n"
        f"{answer['tokens'] / 1e12:.3g} T tokens: {answer['days']:.1f} days, of which "
        f"{answer['days_in_steps']:.1f} in steps\n"
        f"shards {data['shard_bytes'] / 1e12:.3g} TB, store {data['store_bytes'] / 1e12:.3g} TB, "
        f"text {data['text_bytes'] / 1e12:.3g} TB; {data['read_bytes_per_second'] / 1e6:.1f} MB/s "
        f"read by all, {data['tokens_per_second_per_node']:,.0f} tokens/s per node\n"
        f"checkpoint {kept['bytes'] / 1e12:.3g} TB at {kept['bytes_per_second'] / 1e9:.3g} GB/s "
        f"({kept['bytes_per_second_per_node'] / 1e9:.3g} per node)"
    )
    facts = [
        [fact["name"], f"{fact['value']:.3g}" if isinstance(fact["value"], float) else
         str(fact["value"]), fact["meaning"]]
        for fact in answer["assumptions"]
    ]  # fmt: skip
    print_table("Assumptions", ("name", "value", "meaning"), facts, console=console)
