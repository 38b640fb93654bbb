"""`marin train`: start a run from a configuration, or go on with one."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from marin.cli.output import print_json, progress_for

if TYPE_CHECKING:
    from marin.train import Revised, RunResult
    from marin.train.processes import Processes


class _ConfigOrCommand(TyperGroup):
    """`marin train CONFIG` beside `marin train resume RUN`: a first word that is no command is the
    configuration of `start`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.commands:
            args = ["start", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_ConfigOrCommand,
    no_args_is_help=True,
    subcommand_metavar="CONFIG | COMMAND [ARGS]...",
    help="Train a model. marin train CONFIG starts the run of a configuration (TOML) or goes on "
    "with it; its options: marin train start --help.",
)

Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Replace a value, e.g. mesh.expert=4."),
]
Profile = Annotated[
    int | None, typer.Option(min=1, metavar="STEPS", help="Trace so many steps into RUN/profile.")
]
Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Of the first process, for a run of several."),
]
Count = Annotated[int | None, typer.Option("--processes", help="Processes of the run.")]
Index = Annotated[int | None, typer.Option("--process", help="This process, from 0.")]
Distributed = Annotated[
    bool, typer.Option("--distributed", help="One of several processes, as the cluster says.")
]
ChangedAt = Annotated[
    int | None,
    typer.Option(
        "--at",
        metavar="STEP",
        help="Change from this step's checkpoint on, not the newest; what was trained after it is "
        "dropped when the run goes on.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]


@app.command()
def start(
    config: Annotated[Path, typer.Argument(help="Configuration (TOML).")],
    settings: Settings = None,
    profile: Profile = None,
    coordinator: Coordinator = None,
    processes: Count = None,
    process: Index = None,
    distributed: Distributed = False,
    json_output: Json = False,
) -> None:
    """Train from a configuration; the same command goes on with a stopped run."""
    from marin.train import load_config, run

    resolved = load_config(config, _with_profile(settings, profile))
    joined = _joined(coordinator, processes, process, distributed)
    _print_result(
        run(resolved, progress=progress_for(json_output), processes=joined), joined, json_output
    )


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="Directory of the run.")],
    at: Annotated[
        int | None, typer.Option(help="Go on from this step's checkpoint; later ones are dropped.")
    ] = None,
    settings: Settings = None,
    profile: Profile = None,
    coordinator: Coordinator = None,
    processes: Count = None,
    process: Index = None,
    distributed: Distributed = False,
    json_output: Json = False,
) -> None:
    """Go on with a stopped run from its newest complete checkpoint, on any mesh."""
    from marin.train import resume as resume_run

    joined = _joined(coordinator, processes, process, distributed)
    result = resume_run(
        run,
        at=at,
        settings=_with_profile(settings, profile),
        progress=progress_for(json_output),
        processes=joined,
    )
    _print_result(result, joined, json_output)


@app.command()
def shorten(
    run: Annotated[Path, typer.Argument(help="Directory of the run; it must not be training.")],
    to: Annotated[int, typer.Option(help="Tokens of the whole run, those seen included.")],
    at: ChangedAt = None,
    force: Annotated[bool, typer.Option("--force", help="Cut more than 25 % in all.")] = False,
    json_output: Json = False,
) -> None:
    """End a run earlier: the rate decays to the same floor, phases and row lengths move along."""
    from marin.train import shorten as shorten_run

    changed = shorten_run(run, to=to, at=at, force=force, progress=progress_for(json_output))
    _print_revised(changed, json_output)


@app.command()
def branch(
    run: Annotated[Path, typer.Argument(help="Directory of the parent run; it is only read.")],
    at: Annotated[int, typer.Option(help="Step of the checkpoint to start from.")],
    cooldown: Annotated[int, typer.Option(min=1, help="Steps until the branch ends.")],
    seq_len: Annotated[int | None, typer.Option(min=2, help="Row length of the branch.")] = None,
    into: Annotated[Path | None, typer.Option(help="Directory of the branch.")] = None,
    json_output: Json = False,
) -> None:
    """Prepare an early cooldown from a checkpoint, as a run of its own."""
    from marin.train import branch as branch_run

    changed = branch_run(
        run,
        at=at,
        cooldown=cooldown,
        seq_len=seq_len,
        into=into,
        progress=progress_for(json_output),
    )
    _print_revised(changed, json_output)


@app.command()
def remix(
    run: Annotated[Path, typer.Argument(help="Directory of the run; it must not be training.")],
    mixture: Annotated[Path, typer.Option(help="Mixture specification from here on.")],
    normalize: Annotated[
        bool, typer.Option("--normalize", help="Scale the weights of each phase to sum to one.")
    ] = False,
    at: ChangedAt = None,
    json_output: Json = False,
) -> None:
    """Go on with another mixture from the newest checkpoint on, or from that of step --at."""
    from marin.mixture import load
    from marin.train import remix as remix_run

    specification = load(str(mixture), normalize=normalize)
    changed = remix_run(run, specification=specification, at=at, progress=progress_for(json_output))
    _print_revised(changed, json_output)


def _print_revised(changed: "Revised", json_output: bool) -> None:
    if json_output:
        print_json(_plain(asdict(changed)))
        return
    typer.echo(
        f"{changed.run}: from step {changed.step} on a new plan of {changed.steps} steps and "
        f"{changed.tokens:,} tokens\nGo on with: marin train resume {changed.run}"
    )


def _with_profile(settings: list[str] | None, profile: int | None) -> list[str]:
    return [*(settings or []), *([] if profile is None else [f"profile={profile}"])]


def _joined(
    coordinator: str | None, count: int | None, index: int | None, distributed: bool
) -> "Processes":
    from marin.errors import MarinError
    from marin.train.processes import ALONE, join

    if coordinator is None and count is None and index is None and not distributed:
        return ALONE
    if not distributed and (count is None or index is None):
        raise MarinError("--processes and --process go together; or give --distributed")
    return join(coordinator, count, index)


def _print_result(result: "RunResult", processes: "Processes", json_output: bool) -> None:
    if not processes.is_first:
        return
    if json_output:
        print_json(_plain(asdict(result)))
        return
    state = "complete" if result.complete else "stopped; `marin train resume` goes on"
    typer.echo(
        f"{result.run}: step {result.steps}, {result.tokens:,} tokens, {state}\n"
        f"loss {result.final_loss:.4f} (last 5 %: {result.tail_loss:.4f}, "
        f"best unigram model: {result.unigram_loss:.4f})"
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in values.items()}
