"""`marin pack INPUT`."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from marin.cli.options import given, refuse
from marin.cli.output import print_json, print_table, progress_for
from marin.engine.progress import Progress
from marin.errors import MarinError

Input = Annotated[
    Path, typer.Argument(help="A plan, a store (with --schedule), or shards (with --verify).")
]
Schedule = Annotated[
    Path | None, typer.Option(help="A schedule's JSON file; a store is planned with it first.")
]
Out = Annotated[
    Path | None, typer.Option(help="Folder for plan and shards; default: beside the input.")
]
After = Annotated[
    Path | None,
    typer.Option(help="The plan of this run before its schedule was revised; gives the defaults."),
]
Store = Annotated[Path | None, typer.Option(help="Where the plan's store lies, if it was moved.")]
Policy = Annotated[str, typer.Option(help="best-fit, concat or truncate.")]
MaxSegments = Annotated[int | None, typer.Option(help="Most documents in a row.")]
MinFill = Annotated[float, typer.Option(help="Least share of a row that is not padding.")]
Window = Annotated[int, typer.Option(help="Documents that are packed together.")]
ShardTokens = Annotated[int, typer.Option(help="Tokens per shard.")]
BlockTokens = Annotated[int, typer.Option(help="Tokens per record batch and checksum.")]
Documents = Annotated[bool, typer.Option("--documents", help="Store each row's document ids.")]
Threads = Annotated[int, typer.Option(min=0, help="Shards written at a time; 0: one per core.")]
EngineName = Annotated[
    str,
    typer.Option("--engine", help="local, a number of processes, auto or ray://HOST:PORT."),
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Check every byte, and write again what is damaged.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_OF_PLANS = ("schedule", "after", "policy", "max_segments", "min_fill", "window")
_OF_SHARDS = ("out", "shard_tokens", "block_tokens", "documents")


def pack(
    context: typer.Context,
    source: Input,
    schedule: Schedule = None,
    after: After = None,
    out: Out = None,
    store: Store = None,
    policy: Policy = "best-fit",
    max_segments: MaxSegments = None,
    min_fill: MinFill = 0.0,
    window: Window = 1 << 16,
    shard_tokens: ShardTokens = 1 << 26,
    block_tokens: BlockTokens = 1 << 17,
    documents: Documents = False,
    threads: Threads = 0,
    engine: EngineName = "local",
    verify: Verify = False,
    json_output: Json = False,
) -> None:
    """Pack documents into rows and write them as shards; goes on where it was stopped."""
    from marin.engine import Threads as ThreadEngine
    from marin.engine import check_output_root, engine_for, read_manifest
    from marin.packing import PlanConfig, ShardConfig, planned_as, repair
    from marin.packing import pack as write_shards

    start = time.monotonic()
    if engine != "local":
        refuse(context, f"has no meaning with --engine {engine}; leave it out", "threads")
    runner = ThreadEngine(threads) if engine == "local" else engine_for(engine)
    progress = progress_for(json_output)
    stage = read_manifest(source).stage
    if stage not in ("store", "plan", "shards"):
        raise MarinError(
            f"{source}: a directory of stage {stage}; expected a store, a plan or packed shards"
        )
    if stage != "store":
        refuse(context, f"{source} is planned already; name the store to plan anew", *_OF_PLANS)
    if stage == "shards":
        refuse(context, f"{source} is packed already; name the plan to pack anew", *_OF_SHARDS)
    root = out or source.resolve().parent
    check_output_root(root)
    repaired: list[str] = []
    if stage == "shards":
        if not verify:
            raise MarinError(f"{source}: finished shards; add --verify to check and repair them")
        shards = source
    else:
        if stage == "store":
            options: dict[str, Any] = {
                "policy": policy,
                "max_segments": max_segments,
                "min_fill": min_fill,
                "window": window,
            }
            named = {name: value for name, value in options.items() if given(context, name)}
            plan_config = replace(planned_as(after) if after else PlanConfig(), **named)
            planned = _plan(source, schedule, after, root, plan_config, progress)
        else:
            planned = source
        config = ShardConfig(shard_tokens, block_tokens, documents, threads)
        shards = write_shards(planned, root, config, store=store, engine=runner, progress=progress)
    if verify:
        repaired = repair(shards, store=store, engine=runner, progress=progress)
    _print(shards, repaired, time.monotonic() - start, json_output)


def _plan(
    source: Path,
    schedule: Path | None,
    after: Path | None,
    root: Path,
    config: Any,
    progress: Progress,
) -> Path:
    from marin.mixture.schedule import load_schedule
    from marin.packing import plan

    if schedule is None:
        raise MarinError(f"{source}: a store; name its schedule with --schedule FILE")
    revised = load_schedule(schedule)
    return plan(source, revised, root, config, after=after, progress=progress)


def _print(shards: Path, repaired: list[str], seconds: float, json_output: bool) -> None:
    from marin.engine import read_manifest

    summary = read_manifest(shards).summary
    if json_output:
        names = ("rows", "tokens", "padding", "documents", "cut_documents", "truncated_tokens")
        print_json(
            {
                **{name: summary[name] for name in names},
                "seconds": seconds,
                "manifest": str(shards / "manifest.json"),
                "repaired": repaired,
            }
        )
        return
    console = Console()
    rows = [
        [
            stage["row_length"],
            stage["rows"],
            stage["tokens"],
            100 * stage["padding"] / max(1, stage["tokens"] + stage["padding"]),
        ]
        for stage in summary["stages"]
    ]
    columns = ("row length", "rows", "tokens", "padding %")
    print_table(str(shards), columns, rows, console=console)
    for line in repaired:
        console.print(f"repaired {line}", markup=False, highlight=False)
    cut = summary["cut_documents"]
    console.print(f"{summary['documents']:,} documents, {cut:,} of them cut")
