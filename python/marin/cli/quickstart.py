"""`marin quickstart [PATH...]`."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from marin.cli.output import print_json, print_table, progress_for

if TYPE_CHECKING:
    from marin.pipelines.quickstart import QuickstartResult

Paths = Annotated[
    list[Path] | None,
    typer.Argument(help="Files and folders to learn from; default: documents on this machine."),
]
Out = Annotated[Path, typer.Option(help="Where everything is written.")]
Tokenizer = Annotated[
    str | None,
    typer.Option(help="A tokenizer.json or a Hugging Face name; default: train one of 8,192."),
]
Tokens = Annotated[int, typer.Option(min=1, help="Tokens to train on.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_EXAMPLE_CHARACTERS = 160


def quickstart(
    paths: Paths = None,
    out: Out = Path("marin-quickstart"),
    tokenizer: Tokenizer = None,
    tokens: Tokens = 560_000,
    json_output: Json = False,
) -> None:
    """Run the whole pipeline, small and real, on documents found on this machine."""
    from marin.pipelines.quickstart import QuickstartConfig, run

    console = Console(stderr=True, quiet=json_output)
    result = run(
        paths or [],
        out,
        QuickstartConfig(tokens=tokens, tokenizer=tokenizer),
        progress=progress_for(json_output),
        announce=lambda stage, summary: _show(console, stage, summary),
    )
    if json_output:
        print_json(_answer(result))
    else:
        _show_end(result)


def _show(console: Console, stage: str, summary: Mapping[str, Any]) -> None:
    match stage:
        case "documents":
            sources = [(s["source"], s["documents"], s["bytes"]) for s in summary["sources"]]
            print_table("Documents", ["source", "documents", "bytes"], sources, console=console)
        case "dedup":
            _show_duplicates(console, summary)
        case "store":
            cells = summary["cells"].values()
            console.print(
                f"Cells: {len(cells)} in {len(summary['domains'])} domains, "
                f"{sum(c['documents'] for c in cells):,} documents, "
                f"{sum(c['tokens'] for c in cells):,} tokens; "
                f"{summary['validation']['documents']:,} documents held out"
            )
        case "shards":
            space = summary["tokens"] + summary["padding"]
            console.print(
                f"Rows: {summary['rows']:,} in training order, {summary['tokens']:,} tokens, "
                f"{100 * summary['padding'] / space:.2f} % padding"
            )


def _show_duplicates(console: Console, summary: Mapping[str, Any]) -> None:
    rows = [
        (s["source"], s["documents"], s["removed_exact"], s["removed_fuzzy"])
        for s in summary["by_source"]
    ]
    columns = ["source", "documents", "removed, exact", "removed, near"]
    print_table("Duplicates", columns, rows, console=console)
    for pair in summary["examples"][:3]:
        console.print(
            f"  {pair['similarity']:.3f}  {escape(pair['removed'])} [dim]matches[/] "
            f"{escape(pair['kept'])}"
        )
        for side in ("removed_text", "kept_text"):
            text = " ".join(pair[side].split())[:_EXAMPLE_CHARACTERS]
            console.print(f"         {escape(repr(text))}", style="dim", soft_wrap=True)


def _answer(result: "QuickstartResult") -> dict[str, Any]:
    training = result.training
    return {
        "out": str(result.out),
        "report": str(result.report),
        "run": str(training.run),
        "store": str(result.store),
        "shards": str(result.shards),
        "steps": training.steps,
        "tokens": training.tokens,
        "final_loss": training.final_loss,
        "tail_loss": training.tail_loss,
        "unigram_loss": training.unigram_loss,
    }


def _show_end(result: "QuickstartResult") -> None:
    training = result.training
    ratio = training.tail_loss / training.unigram_loss
    print(
        f"Final loss {training.final_loss:.6f} nats/token after {training.tokens:,} tokens; mean "
        f"of the last 5 % of steps {training.tail_loss:.4f}, {ratio:.3f} of the best unigram "
        f"model's {training.unigram_loss:.4f}."
    )
    print(
        f"Everything is in {result.out}: open {result.report}. Next: your own documents, "
        f"`marin quickstart PATH... --out DIR`, or more tokens, `--tokens 3000000`."
    )
