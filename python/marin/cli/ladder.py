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
    help="Plan the rungs of one recipe; forecast, register and watch the big run.",
    no_args_is_help=True,
)

Sources = Annotated[
    list[Path], typer.Argument(help="A grid of rungs (JSON), or the directories of runs.")
]
Metric = Annotated[
    str | None, typer.Option(help="What to compare; default: the rungs' held-out loss.")
]
Floor = Annotated[
    float | None, typer.Option(help="The metric's floor; default: fitted, and integrated over.")
]
TargetOption = Annotated[
    str, typer.Option("--target", help="A rung without evaluations, or FLOPS[,TOKENS,PARAMS].")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@ladder.command()
def plan(
    hero: Annotated[
        Path | None, typer.Argument(help="The big run as TOML; default: the published one.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write each rung's training configuration and shards.sh.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Plan the rungs of one recipe: sizes, batches, steps, rates, FLOPs and cost."""
    from marin.engine import check_output_root
    from marin.ladder.plan import plan as plan_rungs
    from marin.ladder.plan import write_configs

    if out is not None:
        check_output_root(out)
    planned = plan_rungs(hero)
    configs = [str(path) for path in write_configs(planned, out)] if out is not None else []
    rungs = [rung.answer() for rung in planned]
    cost = sum(rung["share"] for rung in rungs[:-1])
    if json_output:
        print_json({"rungs": rungs, "ladder_share": cost, "configs": configs})
        return
    console = Console()
    shown = (
        "name", "layers", "heads", "batch", "steps", "tokens", "active_params", "total_params",
        "train_flops", "muonh_peak", "share",
    )  # fmt: skip
    rows = [
        [float(v) if k.endswith(("s", "flops")) and v > 1e7 else v for k, v in row]
        for row in ([(key, rung[key]) for key in shown] for rung in rungs)
    ]
    print_table("Rungs", list(shown), rows, console=console)
    console.print(f"The rungs below {rungs[-1]['name']} cost {cost:.2%} of it.")
    for path in configs:
        console.print(path, highlight=False, soft_wrap=True)


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
    law = (
        "- (no power law: not all values are positive)"
        if answer["exponent"] is None
        else f"{answer['floor']:.4f} ({given}) + A FLOPs^-{answer['exponent']:.4f}"
    )
    console.print(f"{answer['metric']} = {law} at the end of a run", markup=False)
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
    from marin.ladder.answer import figure

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
        f"{reach:.3g} times the largest rung's compute; baseline {figure(final['baseline'])}",
        markup=False,
    )
    rows = zip(*(answer[key] for key in ("progress", "loss", "low", "high")), strict=True)
    print_table(
        "Trajectory", ["progress", "middle", "low", "high"],
        [list(row) for row in rows][1::2], console=console,
    )  # fmt: skip
    for name, band in answer["extrapolated_rungs"].items():
        console.print(f"{name} ended early; extrapolated to {band['loss'][-1]:.4f}", markup=False)
    print_table(
        "If the floor were", ["floor", "end", "low", "high", "backtest error"],
        [list(entry.values()) for entry in answer["sensitivity"]], console=console,
    )  # fmt: skip
    _print_backtests(answer, console)


@ladder.command()
def register(
    sources: Sources,
    target: TargetOption,
    out: Annotated[Path, typer.Option(help="The Markdown file to write; never overwritten.")],
    tolerance: Annotated[float, typer.Option(help="Relative; how far off still holds.")] = 0.01,
    metric: Metric = None,
    floor: Floor = None,
    json_output: Json = False,
) -> None:
    """Write a forecast down before the run: hypothesis, target, tolerance, data checksums."""
    from marin.ladder import Model, find_target
    from marin.ladder.register import register as write

    rungs = _load(sources, metric)
    block = write(
        rungs, find_target(rungs, target), Model(floor=floor), sources, out, tolerance=tolerance
    )
    if json_output:
        print_json({"registration": str(out), **block})
    else:
        print(out)


@ladder.command()
def watch(
    run: Annotated[Path, typer.Argument(help="A run's directory, or a grid that holds the run.")],
    against: Annotated[Path, typer.Option(help="The registration.")],
    json_output: Json = False,
) -> None:
    """Hold a run against its registration: on track, off track, or not comparable."""
    from marin.ladder.answer import figure
    from marin.ladder.register import read_registration
    from marin.ladder.sources import find_run
    from marin.ladder.watch import watch as judge

    registration = read_registration(against)
    answer = judge(
        find_run(run, registration["forecast"]["target"]["name"], registration["metric"]),
        registration,
    )
    if json_output:
        print_json(answer)
        return
    console = Console()
    since = "" if answer["since"] is None else f" since {answer['since']:.0%}"
    forecast = (
        "which was not forecast"
        if answer["forecast"] is None
        else f"forecast {answer['forecast']:.4f} ({figure(answer['error'], '+.2%')})"
    )
    console.print(
        f"{answer['run']}: {answer['verdict']}{since}; {answer['metric']} {answer['value']:.4f} at "
        f"{answer['progress']:.0%}, {forecast}",
        markup=False,
    )
    for entry in answer["differences"]:
        effect = "voids the comparison" if entry["voids"] else "noted"
        console.print(
            f"{entry['what']}: registered {entry['registered']}, here {entry['run']}; {effect}",
            markup=False,
        )
    keys = ("progress", "value", "forecast", "low", "high", "side")
    print_table(
        "Evaluations", keys,
        [["-" if e[key] is None else e[key] for key in keys] for e in answer["evaluations"]],
        console=console,
    )  # fmt: skip


@ladder.command()
def report(
    sources: Sources,
    target: TargetOption,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("ladder.html"),
    run: Annotated[Path | None, typer.Option("--watch", help="The big run so far.")] = None,
    against: Annotated[Path | None, typer.Option(help="Its registration.")] = None,
    metric: Metric = None,
    floor: Floor = None,
    json_output: Json = False,
) -> None:
    """Draw rungs, trajectories, forecast, residuals, backtests and the watch in one page."""
    from marin.errors import MarinError
    from marin.ladder import Model, find_target, fit_law, forecast_answer
    from marin.ladder.page import ladder_page
    from marin.ladder.register import read_registration
    from marin.ladder.sources import find_run
    from marin.ladder.watch import watch as judge
    from marin.report.page import check_page

    check_page(out, [*sources, *(path for path in (run, against) if path)])
    if (run is None) != (against is None):
        raise MarinError("--watch RUN and --against REGISTRATION go together; give both or neither")
    rungs, model = _load(sources, metric), Model(floor=floor)
    answer = forecast_answer(rungs, find_target(rungs, target), model)
    watched = None
    if run is not None and against is not None:
        registration = read_registration(against)
        name = registration["forecast"]["target"]["name"]
        watched = judge(find_run(run, name, registration["metric"]), registration)
    law = fit_law(rungs, floor=floor, burn_in=model.burn_in)
    ladder_page(rungs, law, answer, watched).write(out)
    if json_output:
        print_json({"report": str(out)})
    else:
        print(out)


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
    from marin.ladder.answer import figure

    for entry in answer["off_trend"]:
        console.print(
            f"{entry['rung']} is off the trend by {figure(entry['deviations'], '+.1f')} standard "
            "deviations",
            markup=False,
        )
    print_table(
        "Backtests (mean absolute error)",
        ["held out", "rung", "error", "baseline", "inside 90 %"],
        [
            [test["protocol"], test["rung"], test["error"], test["baseline_error"], test["covered"]]
            for test in answer["backtests"]
        ], console=console,
    )  # fmt: skip
