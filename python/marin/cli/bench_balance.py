"""`marin bench balance`, `dispatch`, `compare` and `history`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from marin.cli.options import refuse
from marin.cli.output import print_json, print_table, progress_for

if TYPE_CHECKING:
    from marin.bench.balance import BalanceConfig

ModelName = Annotated[str, typer.Option("--model", help="A preset: tiny, d768 to d6144.")]
DeviceName = Annotated[
    str, typer.Option("--device", help="gb200, h200 or h100, by the cost model; default: this one.")
]
Devices = Annotated[int, typer.Option(help="Present devices that share the experts.")]
Run = Annotated[
    Path | None,
    typer.Option(help="Measure the model of this run, and check the verdict with its wait."),
]
Root = Annotated[Path | None, typer.Option(help="Keeps the corpus here for another time.")]
Plot = Annotated[Path | None, typer.Option(help="Write both sides over row length (.svg).")]
Save = Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="A tiny model and corpus, to see it run.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Results = Annotated[Path, typer.Argument(help="A file of marin bench ... --save.")]


def bench_balance(
    context: typer.Context,
    model: ModelName = "d768",
    device: DeviceName = "",
    devices: Devices = 4,
    run: Run = None,
    root: Root = None,
    plot: Plot = None,
    save: Save = None,
    smoke: Smoke = False,
    json_output: Json = False,
) -> None:
    """Which side limits, data or experts, and how many cores feed a device, a node and a rack."""
    from marin.bench.balance import measure, of_run, read_run
    from marin.bench.results import check_outputs
    from marin.engine import check_plot, write_json

    trained = None
    if run is None:
        config = _config(context, model, device, devices, smoke)
    else:
        named = ("model", "device", "devices", "smoke")
        refuse(context, "--run measures the run's own model on its devices; leave it out", *named)
        trained = read_run(run)
        config = of_run(trained)
    inputs = [run] if run else []
    check_outputs(save, root, inputs=inputs)
    if plot is not None:
        check_plot(plot, inputs)
    answer = measure(config, root, run=trained, progress=progress_for(json_output))
    if plot is not None:
        _draw(answer["balance"], plot)
    if save is not None:
        write_json(save, answer)
    if json_output:
        print_json(answer)
        return
    _print_lines("Balance", answer["results"])
    print(answer["balance"]["verdict"]["line"])
    if run is not None:
        checked = answer["balance"]["run"]
        print(
            f"{run}: {checked['data_wait']:.2%} of {checked['steps']} steps was waiting for data, "
            f"so {checked['limits']} limited it; the verdict "
            f"{'agrees' if checked['agrees'] else 'does not agree'}"
        )


def bench_dispatch(
    context: typer.Context,
    model: ModelName = "d768",
    devices: Devices = 4,
    peers: Annotated[bool, typer.Option("--peers", help="Also plain XLA and tokamax.")] = False,
    save: Save = None,
    smoke: Smoke = False,
    json_output: Json = False,
) -> None:
    """A layer's expert exchange on this device: its parts, and each transport as a whole."""
    from marin.bench.balance import measure_dispatch
    from marin.bench.results import check_outputs
    from marin.engine import write_json

    check_outputs(save)
    config = _config(context, model, "", devices, smoke)
    answer = measure_dispatch(config, peers=peers, progress=progress_for(json_output))
    if save is not None:
        write_json(save, answer)
    if json_output:
        print_json(answer)
    else:
        _print_lines("Dispatch", answer["results"])


def bench_compare(before: Results, after: Results, json_output: Json = False) -> None:
    """What changed from one result file to another, what moved most first."""
    from marin.bench.compare import compare, read_results

    old, new = read_results(before), read_results(after)
    changes = compare(old["results"], new["results"])
    if json_output:
        print_json(
            {
                "before": {"file": str(before), "machine": old.get("machine")},
                "after": {"file": str(after), "machine": new.get("machine")},
                "same_machine": old.get("machine") == new.get("machine"),
                "changes": [change.as_json() for change in changes],
            }
        )
        return
    rows = [
        (c.tool, c.metric, c.before, c.after, f"{c.ratio:.3f}", c.verdict, c.unit) for c in changes
    ]
    columns = ("tool", "metric", "before", "after", "ratio", "", "unit")
    print_table(f"{before} -> {after}", columns, rows, console=Console())
    if old.get("machine") != new.get("machine"):
        print("The machines differ, so no ratio says anything about the code alone.")


def bench_history(
    folder: Annotated[Path, typer.Argument(help="Of result files.")] = Path("benches/results"),
    out: Annotated[Path, typer.Option(help="The page.")] = Path("bench-history.html"),
    json_output: Json = False,
) -> None:
    """Draw all result files of a folder in one HTML page."""
    from marin.bench.compare import history
    from marin.report.page import check_page

    check_page(out)
    history(folder).write(out)
    if json_output:
        print_json({"page": str(out)})
    else:
        print(out)


def _config(
    context: typer.Context, model: str, device: str, devices: int, smoke: bool
) -> "BalanceConfig":
    from marin.bench.balance import BalanceConfig

    if not smoke:
        return BalanceConfig(model, device, devices=devices)
    refuse(context, "--smoke measures the preset tiny; leave one of them out", "model")
    return BalanceConfig(
        "tiny",
        device,
        (128, 512),
        devices=devices,
        tokens=64,
        documents=2000,
        seconds=0.0,
        runs=2,
    )


def _print_lines(title: str, results: list[dict[str, Any]]) -> None:
    columns = ("metric", "value", "unit")
    rows = [tuple(line[column] for column in columns) for line in results]
    print_table(title, columns, rows, console=Console())


def _draw(balanced: dict[str, Any], path: Path) -> None:
    from marin.engine import atomic_file
    from marin.errors import MarinError
    from marin.report.charts import lines

    if path.suffix != ".svg":
        raise MarinError(f"{path}: expected a name that ends in .svg")
    lengths = sorted(map(int, balanced["data"]))
    series: dict[str, tuple[list[float], list[float]]] = {}
    xs = [float(length) for length in lengths]
    for name in ("stream_shards", "from_store"):
        rates = [balanced["data"][str(length)][name] for length in lengths]
        series[f"one core, {name.replace('_', ' ')}"] = (xs, rates)
    series["one device, trained"] = (xs, [balanced["compute"][str(length)] for length in lengths])
    for name, rate in balanced["dispatch"]["transports"].items():
        series[f"one device, {name}, one layer"] = (xs, [rate] * len(xs))
    drawn = lines(series, x="tokens per row", y="tokens/s", log=True)
    with atomic_file(path) as partial:
        partial.write_text(str(drawn))
