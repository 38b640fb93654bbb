"""`marin export RUN OUT`."""

from pathlib import Path
from typing import Annotated

import typer

from marin.cli.output import print_json

Run = Annotated[Path, typer.Argument(help="Directory of a run.")]
Out = Annotated[Path, typer.Argument(help="New or empty folder.")]
At = Annotated[int | None, typer.Option(help="Step of the checkpoint; default: the newest.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def export(run: Run, out: Out, at: At = None, json_output: Json = False) -> None:
    """Write a checkpoint's model as safetensors with a Hugging Face config.json."""
    from marin.cli.trained import load_trained
    from marin.model.export import check_export_directory, export_model

    check_export_directory(out)
    trained = load_trained(run, at)
    export_model(trained.model, out)
    if json_output:
        print_json({"step": trained.step, "out": str(out)})
    else:
        print(f"{out}: the model of step {trained.step}")
