"""`marin mix show|check|plan|rebase`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from marin.cli.options import given, refuse
from marin.cli.output import print_json, print_table
from marin.errors import MarinError

if TYPE_CHECKING:
    from marin.mixture import Schedule, Specification, Stage

app = typer.Typer(help="Mixtures: quotas, epochs per cell, what a change moves.")

Mixture = Annotated[str, typer.Argument(help="A JSON or TOML file, or the name of a preset.")]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="Scale each phase's weights to sum to one.")
]
Against = Annotated[str | None, typer.Option(help="Another mixture: show what this one moves.")]
Plot = Annotated[Path | None, typer.Option(help="Write a plot here (.png, .svg or .pdf).")]
All = Annotated[bool, typer.Option("--all", help="List every cell, not only the most repeated.")]
StoreDir = Annotated[Path | None, typer.Option("--store", help="A store that must fit.")]
RowLength = Annotated[
    list[str], typer.Option(help="START:TOKENS, a fraction of the horizon and a row length.")
]
BatchTokens = Annotated[
    int | None, typer.Option(help="Tokens per batch; default: those of the published runs.")
]
Horizon = Annotated[int | None, typer.Option(help="Tokens of the run; default: the budget.")]
Exhaustion = Annotated[str, typer.Option(help="error, repeat or drop-and-renormalize.")]
Rows = Annotated[
    bool, typer.Option("--rows", help="Check the quotas at every batch boundary and in samples.")
]
Threads = Annotated[int, typer.Option(min=0, help="Threads of --rows; 0: one per core.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_SHOWN = 20
_SAMPLES = 8
_SAMPLE_ROWS = 25_000
_DEFAULT_ROWS = ["0:4096"]


@app.command()
def show(
    mixture: Mixture,
    normalize: Normalize = False,
    against: Against = None,
    plot: Plot = None,
    every: All = False,
    json_output: Json = False,
) -> None:
    """Cells, weights, tokens and epochs per phase; or what differs from another mixture."""
    from marin.engine import check_plot
    from marin.mixture import load
    from marin.mixture.plot import plot_cells, plot_changes

    if plot:
        check_plot(plot, [Path(name) for name in (mixture, against) if name])
    spec = load(mixture, normalize=normalize)
    if against is not None:
        other = load(against, normalize=normalize)
        if plot:
            plot_changes(other, spec, plot)
        _show_changes(other, spec, every, json_output)
        return
    if plot:
        plot_cells(spec, plot)
    _show_cells(spec, every, json_output)


@app.command()
def check(
    context: typer.Context,
    mixture: Mixture,
    normalize: Normalize = False,
    store: StoreDir = None,
    rows: Rows = False,
    row_length: RowLength = _DEFAULT_ROWS,
    batch_tokens: BatchTokens = None,
    horizon: Horizon = None,
    exhaustion: Exhaustion = "error",
    threads: Threads = 0,
    json_output: Json = False,
) -> None:
    """Is it a valid mixture, within its epoch cap, fit for the store, and exact at every row?"""
    from marin.mixture import load
    from marin.mixture.binding import check_store, read_store
    from marin.mixture.epochs import check_cap, exposures, warnings
    from marin.mixture.exhaustion import check_policy

    if not rows:
        names = ("row_length", "batch_tokens", "horizon", "threads")
        refuse(context, "for the check of every row; add --rows", *names)
    check_policy(exhaustion)
    spec = load(mixture, normalize=normalize)
    if exhaustion == "error":
        check_cap(spec)
    if store is not None:
        check_store(spec, read_store(store))
    most = max(exposures(spec), key=lambda exposure: exposure.total_epochs)
    answer: dict[str, Any] = {
        "name": spec.name,
        "fingerprint": spec.fingerprint,
        "cells": len(spec.cells),
        "available_tokens": sum(spec.available_tokens.values()),
        "phases": [{"name": phase.name, "tokens": phase.tokens} for phase in spec.phases],
        "max_epochs": {"cell": most.cell, "epochs": most.total_epochs},
        "epoch_cap": spec.epoch_cap,
        "warnings": warnings(spec),
    }
    if rows:
        schedule = _schedule(spec, row_length, batch_tokens, horizon, 0, exhaustion, None)
        answer["quotas"] = _check_rows(schedule, threads)
    if json_output:
        print_json(answer)
        return
    console = Console()
    console.print(f"[bold]{escape(spec.name)}[/] is valid: {answer['cells']} cells, ", end="")
    console.print(f"{answer['available_tokens']:,} tokens available", highlight=False)
    for phase in spec.phases:
        console.print(f"  phase {escape(phase.name)}: {phase.tokens:,} tokens", highlight=False)
    repeated = f"  most repeated: {most.cell}, {most.total_epochs:.3f} epochs"
    console.print(escape(repeated), highlight=False)
    for key, value in answer.get("quotas", {}).items():
        console.print(escape(f"  {key.replace('_', ' ')}: {value}"), highlight=False)
    for warning in answer["warnings"]:
        console.print(f"  [yellow]warning:[/] {escape(warning)}", highlight=False)


@app.command()
def plan(
    context: typer.Context,
    mixture: Mixture,
    out: Annotated[Path, typer.Option(help="Where the schedule's JSON goes.")],
    normalize: Normalize = False,
    row_length: RowLength = _DEFAULT_ROWS,
    batch_tokens: BatchTokens = None,
    horizon: Horizon = None,
    seed: Annotated[int, typer.Option(help="Key of all permutations.")] = 0,
    exhaustion: Exhaustion = "error",
    simulate: Annotated[
        int | None, typer.Option(help="Tokens of a longer run whose repetition to reproduce.")
    ] = None,
    revise: Annotated[
        Path | None, typer.Option(help="A schedule to go on from; needs --step.")
    ] = None,
    step: Annotated[
        int | None, typer.Option(help="The step from which on the new mixture holds.")
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Write rows, tokens and epochs of each run and cell here, as Parquet."),
    ] = None,
    json_output: Json = False,
) -> None:
    """Turn a mixture into a schedule: runs of whole batches with exact quotas per cell.

    With --revise, everything before --step stays as it was; the mixture and the given horizon, row
    lengths and tokens per batch hold from there on. The file is what marin pack takes.
    """
    from marin.engine import check_output_file, is_json_with, write_json
    from marin.mixture import load
    from marin.mixture.ledger import is_ledger, write_ledger
    from marin.mixture.schedule import load_schedule

    inputs = [Path(mixture), *([revise] if revise else [])]
    is_schedule = is_json_with("format_version", "revisions", "simulated_horizon")
    check_output_file(out, "schedule", is_schedule, inputs=inputs)
    if ledger is not None:
        check_output_file(ledger, "ledger", is_ledger, inputs=[*inputs, out])
        if ledger.suffix != ".parquet":
            raise MarinError(
                f"--ledger {ledger}: it is written as Parquet; end its name in .parquet"
            )
    if (revise is None) != (step is None):
        raise MarinError("--revise FILE and --step N belong together")
    if revise is not None:
        names = ("seed", "exhaustion", "simulate")
        refuse(context, "a revision keeps what its schedule has; leave it out", *names)
    spec = load(mixture, normalize=normalize)
    if revise is not None and step is not None:
        before = load_schedule(revise)
        schedule = before.revised(
            step,
            specification=spec,
            horizon=horizon,
            stages=_revised_stages(
                before.revision_at(step).stages,
                row_length if given(context, "row_length") else None,
                batch_tokens,
            ),
        )
    else:
        schedule = _schedule(spec, row_length, batch_tokens, horizon, seed, exhaustion, simulate)
    bound = schedule.order.bound
    write_json(out, schedule.to_json())
    if ledger is not None:
        write_ledger(schedule, ledger)
    answer = {
        "schedule": str(out),
        "ledger": str(ledger) if ledger else None,
        "fingerprint": schedule.fingerprint,
        "steps": schedule.steps,
        "rows": schedule.rows,
        "tokens": schedule.tokens,
        "bound_rows": bound,
        "runs": [
            {
                "phase": run.phase,
                "seq_len": run.seq_len,
                "batch_size": run.batch_size,
                "first_step": run.first_step,
                "steps": run.steps,
                "rows": run.rows,
                "tokens": run.tokens,
            }
            for run in schedule.runs
        ],
    }
    if json_output:
        print_json(answer)
        return
    console = Console()
    columns = ["phase", "row", "batch", "first step", "steps", "rows", "tokens"]
    table = [
        [
            run.phase,
            run.seq_len,
            run.batch_size,
            run.first_step,
            run.steps,
            _compact(run.rows),
            _compact(run.tokens),
        ]
        for run in schedule.runs
    ]
    print_table(f"{spec.name}: {schedule.rows:,} rows", columns, table, console=console)
    console.print(f"No cell is ever off its target by more than {bound:.3f} rows.", highlight=False)
    console.print(escape(f"Next: marin pack STORE --schedule {out}"), highlight=False)


@app.command()
def rebase(
    mixture: Mixture,
    store: Annotated[Path, typer.Argument(help="The store to write the mixture for.")],
    out: Annotated[Path, typer.Option(help="Where the new mixture's JSON goes.")],
    rename: Annotated[
        list[str] | None, typer.Option(help="OLD=NEW: a cell of the mixture, one of the store.")
    ] = None,
    drop_missing: Annotated[
        bool, typer.Option("--drop-missing", help="Give lost cells' weight to the others.")
    ] = False,
    normalize: Normalize = False,
    json_output: Json = False,
) -> None:
    """Write the mixture for another store: same weights, its cells and tokens, bound to it."""
    from marin.engine import check_output_file, write_json
    from marin.mixture import load
    from marin.mixture.binding import compare_store, read_store
    from marin.mixture.binding import rebase as rebased

    spec = load(mixture, normalize=normalize)
    cells = read_store(store)
    renames = {}
    for pair in rename or []:
        old, equals, new = pair.partition("=")
        if not equals:
            raise MarinError(f"--rename {pair}, expected OLD=NEW")
        renames[old] = new
    result = rebased(spec, cells, renames=renames, drop_missing=drop_missing)
    diff = compare_store(spec, cells)
    check_output_file(out, "mixture", lambda _: True, inputs=[Path(mixture), store])
    if out.exists() and not _holds(out, result.to_json()):
        # Another mixture may have been written or changed by hand.
        raise MarinError(f"{out}: exists and holds something else; name another file")
    write_json(out, result.to_json())
    if json_output:
        print_json(
            {
                "mixture": str(out),
                "fingerprint": result.fingerprint,
                "store": result.store,
                "missing": list(diff.missing),
                "added": list(diff.added),
                "changed": [list(change) for change in diff.changed],
                "renamed": renames,
            }
        )
        return
    console = Console()
    differences = escape(f"Differences: {diff}") if diff else "No differences."
    console.print(differences, highlight=False)
    console.print(escape(f"Wrote {out}, bound to store {result.store}."), highlight=False)


def _holds(path: Path, value: Any) -> bool:
    try:
        return bool(json.loads(path.read_text()) == value)
    except (OSError, ValueError, RecursionError):
        return False


def _schedule(
    spec: "Specification",
    row_length: list[str],
    batch_tokens: int | None,
    horizon: int | None,
    seed: int,
    exhaustion: str,
    simulate: int | None,
) -> "Schedule":
    from marin.mixture import Schedule

    return Schedule.of(
        spec,
        _stages(row_length, batch_tokens),
        horizon=horizon,
        seed=seed,
        exhaustion=exhaustion,
        simulated_horizon=simulate,
    )


def _stages(row_length: list[str], batch_tokens: int | None) -> "tuple[Stage, ...]":
    from marin.mixture import constant_batches
    from marin.mixture.schedule import DEFAULT_BATCH_TOKENS

    tokens = DEFAULT_BATCH_TOKENS if batch_tokens is None else batch_tokens
    return constant_batches(tokens, _lengths(row_length))


def _revised_stages(
    stages: "tuple[Stage, ...]", row_length: list[str] | None, batch_tokens: int | None
) -> "tuple[Stage, ...] | None":
    """The stages from a revision on, where `stages` held before: of row lengths and tokens per
    batch, what is None stays."""
    from marin.mixture import constant_batches

    if row_length is None and batch_tokens is None:
        return None
    if row_length is None:
        lengths = [(stage.start, stage.seq_len) for stage in stages]
    else:
        lengths = _lengths(row_length)
    if batch_tokens is None:
        sizes = sorted({stage.batch_size * stage.seq_len for stage in stages})
        if len(sizes) > 1:
            raise MarinError(f"the schedule's batches hold {sizes} tokens; add --batch-tokens N")
        batch_tokens = sizes[0]
    return constant_batches(batch_tokens, lengths)


def _lengths(row_length: list[str]) -> list[tuple[float, int]]:
    lengths = []
    for entry in row_length:
        start, _, tokens = entry.partition(":")
        try:
            lengths.append((float(start), int(tokens)))
        except ValueError:
            raise MarinError(
                f"--row-length {entry}, expected START:TOKENS as in 0.5:8192"
            ) from None
    return lengths


def _check_rows(schedule: "Schedule", threads: int) -> dict[str, Any]:
    """Every batch boundary of every run, and every row of samples spread over the run."""
    order = schedule.order
    boundaries = [
        order.worst(run.first_row, run.end_row, run.batch_size, threads) for run in schedule.runs
    ]
    length = min(_SAMPLE_ROWS, schedule.rows)
    last_start = schedule.rows - length
    starts = {last_start * i // (_SAMPLES - 1) for i in range(_SAMPLES)}
    # The ends of the runs are where the targets bend.
    starts |= {min(max(run.first_row - length // 2, 0), last_start) for run in schedule.runs}
    samples = [order.worst(start, start + length, 1, threads) for start in sorted(starts)]
    return {
        "rows": schedule.rows,
        "boundaries": sum(run.steps for run in schedule.runs) + 1,
        "worst_at_boundaries": _place(max(boundaries)),
        "sampled_rows": len(samples) * length,
        "worst_in_samples": _place(max(samples)),
        "proven_bound": order.bound,
    }


def _compact(count: float) -> str:
    """A count in at most six characters: 9.375T."""
    for unit in ("", "K", "M", "B"):
        if count < 1000:
            return f"{count:.4g}{unit}"
        count /= 1000
    return f"{count:.4g}T"


def _place(found: tuple[float, str, int]) -> dict[str, Any]:
    distance, cell, row = found
    return {"distance": distance, "cell": cell, "row": row}


def _show_cells(spec: "Specification", every: bool, json_output: bool) -> None:
    from marin.mixture.diff import domain_of, quality_of, shares
    from marin.mixture.epochs import exposures

    cells = exposures(spec)
    groups = {"domain": shares(spec, domain_of), "quality": shares(spec, quality_of)}
    if json_output:
        print_json(
            {
                "name": spec.name,
                "fingerprint": spec.fingerprint,
                "phases": [{"name": phase.name, "tokens": phase.tokens} for phase in spec.phases],
                "cells": [
                    {
                        "cell": e.cell,
                        "available_tokens": spec.available_tokens[e.cell],
                        "weights": [phase.weights[e.cell] for phase in spec.phases],
                        "tokens": list(e.tokens),
                        "epochs": list(e.epochs),
                        "total_epochs": e.total_epochs,
                    }
                    for e in cells
                ],
                **{
                    f"by_{key}": {n: {"share": s, "epochs": e} for n, (s, e) in values.items()}
                    for key, values in groups.items()
                },
            }
        )
        return
    console = Console()
    for key, values in groups.items():
        largest = max(share for share, _ in values.values())
        rows = [
            [name, f"{share:.2%}", f"{epochs:.3f}", "█" * round(24 * share / largest)]
            for name, (share, epochs) in values.items()
        ]
        print_table(f"By {key}", [key, "share", "epochs", ""], rows, console=console)
    columns = ["cell", "available"]
    for phase in spec.phases:
        columns += [f"{phase.name} weight", "tokens", "epochs"]
    ranked = cells if every else sorted(cells, key=lambda e: -e.total_epochs)[:_SHOWN]
    rows = []
    for e in ranked:
        row: list[str] = [e.cell, _compact(spec.available_tokens[e.cell])]
        for phase, tokens, epochs in zip(spec.phases, e.tokens, e.epochs, strict=True):
            row += [f"{phase.weights[e.cell]:.3g}", _compact(tokens), f"{epochs:.3f}"]
        rows.append([*row, f"{e.total_epochs:.3f}"])
    title = "Cells" if every else f"Cells most repeated ({len(rows)} of {len(cells)}; --all)"
    print_table(title, [*columns, "all epochs"], rows, console=console)


def _show_changes(
    before: "Specification", after: "Specification", every: bool, json_output: bool
) -> None:
    from marin.mixture.diff import compare

    changes = compare(before, after)
    if json_output:
        print_json(
            {
                "before": before.name,
                "after": after.name,
                **{
                    key: [
                        {
                            "name": c.name,
                            "before": c.before,
                            "after": c.after,
                            "epochs_before": c.epochs_before,
                            "epochs_after": c.epochs_after,
                        }
                        for c in group
                    ]
                    for key, group in changes.items()
                },
            }
        )
        return
    console = Console()
    for key, group in changes.items():
        shown = group if every else group[:_SHOWN]
        rows = [
            [
                c.name,
                f"{c.before:.3%}",
                f"{c.after:.3%}",
                f"{c.moved * 100:+.3f}",
                f"{c.epochs_before:.3f}",
                f"{c.epochs_after:.3f}",
            ]
            for c in shown
        ]
        title = f"{key.replace('_', ' ').capitalize()}: {before.name} -> {after.name}"
        columns = [key[3:], "before", "after", "points", "epochs before", "epochs after"]
        print_table(title, columns, rows, console=console)
