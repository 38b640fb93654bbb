"""`marin quickstart [PATH...]`."""

from pathlib import Path
from typing import Annotated

import typer

from marin.cli.output import progress_for

Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Files and folders to learn from; default: documents on this machine."),
]
Out = Annotated[Path, typer.Option(help="Where everything is written.")]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="A tokenizer.json or a Hugging Face name; default: train one of 8,192."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def quickstart(
    paths: Paths = None,
    out: Out = Path("marin-quickstart"),
    tokenizer: Tokenizer = None,
    json_output: Json = False,
) -> None:
    """Run the whole pipeline, small and real, on documents found on this machine."""
    from marin.pipelines.quickstart import run

    run(paths or None, out, tokenizer=tokenizer, progress=progress_for(json_output))
