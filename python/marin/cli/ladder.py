"""`marin ladder plan|fit|forecast|register|watch|report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from marin.cli.output import print_json, print_table

if TYPE_CHECKING:
    from marin.ladder import Ladder

ladder = typer.Typer(
    name="ladder",
    help="Plan the rungs of one recipe, forecast the big run, register the forecast, watch the run.",
    no_args_is_help=True,
)

Sources = Annotated[
    list[Path], typer.Argument(help="A grid of rungs (JSON), or the directories of runs.")
]
Metric = Annotated[str | None, typer.Option(help="What to compare; default: the rungs' loss.")]
Floor = Annotated[
    float | None, typer.Option(help="The metric's floor; default: fitted, and integrated over.")
]
TargetOption = Annotated[
    str, typer.Option("--target", help="A rung without evaluations, or FLOPS[,TOKENS,PARAMS].")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@ladder.command()
def fit(
    sources: Sources, metric: Metric = None, floor: Floor = None, json_output: Json = False
) -> None:
    """Fit the rungs: exponents and floor, each rung's place, and the backtests."""
    from marin.ladder import Model, fit_answer

    answer = fit_answer(_load(sources, metric), Model(floor=floor))
    if json_output:
        print_json(answer)
        return
    console = Console()
    given = "given" if answer["floor_given"] else "fitted"
    console.print(
        f"{answer['metric']} = {answer['floor']:.4f} ({given}) + A FLOPs^-{answer['exponent']:.4f} "
        "at the end of a run"
    )
    _print_rungs(answer, console)
    _print_backtests(answer, console)


@ladder.command()
def forecast(
    sources: Sources,
    target: TargetOption,
    metric: Metric = None,
    floor: Floor = None,
    json_output: Json = False,
) -> None:
    """Forecast a bigger run: its end and its whole trajectory, with 90 % intervals."""
    from marin.ladder import Model, find_target, forecast_answer

    rungs = _load(sources, metric)
    answer = forecast_answer(rungs, find_target(rungs, target), Model(floor=floor))
    if json_output:
        print_json(answer)
        return
    console = Console()
    final, reach = answer["final"], answer["target"]["extrapolation"]
    console.print(
        f"{answer['target']['name']}: {answer['metric']} {final['loss']:.4f} at "
        f"{final['progress']:.0%}, 90 % interval {final['low']:.4f} to {final['high']:.4f}; "
        f"{reach:.3g} times the largest rung's compute; baseline {final['baseline']:.4f}"
    )
    rows = zip(*(answer[key] for key in ("progress", "loss", "low", "high")), strict=True)
    print_table(
        "Trajectory", ["progress", "middle", "low", "high"],
        [list(row) for row in rows][1::2], console=console,
    )  # fmt: skip
    for name, band in answer["extrapolated_rungs"].items():
        console.print(f"{name} ended early; extrapolated to {band['loss'][-1]:.4f}")
    print_table(
        "If the floor were", ["floor", "end", "low", "high", "backtest error"],
        [list(entry.values()) for entry in answer["sensitivity"]], console=console,
    )  # fmt: skip
    _print_backtests(answer, console)


def _load(sources: list[Path], metric: str | None) -> "Ladder":
    from marin.ladder.sources import load

    return load(sources, metric)


def _print_rungs(answer: dict[str, Any], console: Console) -> None:
    print_table(
        "Rungs", ["rung", "FLOPs", "tokens", "active", "progress", "last"],
        [
            [rung["name"], rung["train_flops"], rung["tokens"], rung["active_params"],
             rung["progress"], rung["last"]]
            for rung in answer["rungs"]
        ], console=console,
    )  # fmt: skip


def _print_backtests(answer: dict[str, Any], console: Console) -> None:
    for entry in answer["off_trend"]:
        console.print(
            f"{entry['rung']} is off the trend by {entry['deviations']:+.1f} standard deviations"
        )
    print_table(
        "Backtests (mean absolute error)",
        ["held out", "rung", "error", "baseline", "inside 90 %"],
        [
            [test["protocol"], test["rung"], test["error"], test["baseline_error"], test["covered"]]
            for test in answer["backtests"]
        ], console=console,
    )  # fmt: skip
