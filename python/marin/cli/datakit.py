"""`marin datakit`: from raw sources to the cell store, whole or stage by stage."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from marin.cli.dedup import dedup as dedup_command
from marin.cli.options import refuse
from marin.cli.output import print_json, print_table, progress_for
from marin.errors import MarinError

app = typer.Typer(no_args_is_help=True, help="From raw sources to the cell store.")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Root = Annotated[Path, typer.Option("--root", help="The folder for the stage's directory.")]
EngineName = Annotated[
    str, typer.Option("--engine", help="local, a number of workers, auto or ray://HOST:PORT.")
]
Documents = Annotated[Path, typer.Argument(help="A documents directory.")]
Removals = Annotated[
    Path | None, typer.Option("--dedup", help="A sidecar that says which documents stay.")
]

_OF_KIND = {
    "embedding": (),
    "domains": ("domains", "dedup"),
    "quality": ("buckets", "classifier", "dedup"),
}
"""Options of `annotate` that only some kinds of sidecar have."""


@app.command()
def build(
    config: Annotated[Path, typer.Argument(help="The build's TOML file.")],
    plan: Annotated[bool, typer.Option("--plan", help="Only show what would run.")] = False,
    engine: Annotated[str | None, typer.Option(help="Instead of the file's engine.")] = None,
    json_output: Json = False,
) -> None:
    """Run the whole graph, or go on where it stopped; what is finished is not done again."""
    from marin.datakit import build as run_build
    from marin.datakit import load_settings
    from marin.datakit import plan as plan_build
    from marin.datakit.report import write_reports
    from marin.engine import read_manifest

    settings = load_settings(config)
    if engine is not None:
        settings = replace(settings, engine=engine)
    if plan:
        planned = plan_build(settings)
        if json_output:
            print_json({"steps": [vars(p) | {"directory": _text(p.directory)} for p in planned]})
            return
        rows = [(p.name, p.state, ", ".join(p.needs)) for p in planned]
        print_table("Plan", ("step", "state", "needs"), rows, console=Console())
        return
    found = run_build(settings, progress=progress_for(json_output))
    report = write_reports(found, settings.output) / "store.html"
    summary = read_manifest(found["store"]).summary
    tokens = sum(cell["tokens"] for cell in summary["cells"].values())
    documents = sum(cell["documents"] for cell in summary["cells"].values())
    if json_output:
        print_json(
            {
                "store": str(found["store"]),
                "cells": len(summary["cells"]),
                "documents": documents,
                "tokens": tokens,
                "validation": summary["validation"],
                "report": str(report),
                "directories": {name: str(path) for name, path in found.items()},
            }
        )
        return
    print(
        f"{len(summary['cells'])} cells, {documents:,} documents, {tokens:,} tokens in "
        f"{found['store']}; report: {report}"
    )


@app.command()
def ingest(
    context: typer.Context,
    paths: Annotated[list[str], typer.Argument(help="Files, folders, URLs or dataset names.")],
    root: Root,
    name: Annotated[str, typer.Option(help="The value of the column `source`.")] = "documents",
    format: Annotated[str, typer.Option(help="auto, parquet, jsonl, arrow, warc, text.")] = "auto",
    text: Annotated[str, typer.Option(help="The column that holds the documents.")] = "text",
    id: Annotated[str, typer.Option(help="The column that holds ids.")] = "id",
    engine: EngineName = "local",
    json_output: Json = False,
) -> None:
    """Read documents of any kind into a documents directory."""
    from marin.datakit import Source
    from marin.datakit import ingest as run
    from marin.datakit.ingest import require_documents
    from marin.engine import engine_for

    if format in ("text", "warc"):
        refuse(context, f"files of format {format} have no columns; leave it out", "text", "id")
    source = Source(name, tuple(paths), format=format, text=text, id=id)
    directory = run(source, root, engine=engine_for(engine), progress=progress_for(json_output))
    require_documents([directory])
    _finish(directory, json_output)


app.command("dedup")(dedup_command)


@app.command()
def tokenize(
    context: typer.Context,
    documents: Documents,
    root: Root,
    tokenizer: Annotated[
        str | None, typer.Option(help="A file or Hugging Face name; without it, train one.")
    ] = None,
    vocab_size: Annotated[int, typer.Option(help="Of the tokenizer that is trained.")] = 8192,
    bos: Annotated[str, typer.Option(help="Before each document; none for none.")] = "auto",
    eos: Annotated[str, typer.Option(help="After each document; none for none.")] = "auto",
    dedup: Removals = None,
    engine: EngineName = "local",
    json_output: Json = False,
) -> None:
    """Write the tokens sidecar of a documents directory."""
    from marin.datakit import BPEConfig, SpecialTokens, load_tokenizer, train_bpe
    from marin.datakit import tokenize as run
    from marin.engine import engine_for

    progress = progress_for(json_output)
    if tokenizer is None:
        refuse(context, "for a tokenizer that is given; add --tokenizer", "bos", "eos")
        config = BPEConfig(vocab_size=vocab_size)
        chosen = train_bpe(documents, root, config, dedup=dedup, progress=progress)
    else:
        refuse(context, "for a tokenizer that is trained; leave out one of them", "vocab_size")
        special = SpecialTokens(*(None if name == "none" else name for name in (bos, eos)))
        chosen = load_tokenizer(tokenizer, root, special)
    directory = run(
        documents, chosen, root, dedup=dedup, engine=engine_for(engine), progress=progress
    )
    _finish(directory, json_output)


@app.command()
def annotate(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(help="embedding, domains or quality.")],
    documents: Documents,
    root: Root,
    dedup: Removals = None,
    domains: Annotated[int, typer.Option(help="Domains wanted.")] = 40,
    buckets: Annotated[int, typer.Option(help="Quality buckets.")] = 5,
    classifier: Annotated[
        Path | None, typer.Option(help="A directory of train-quality, instead of the rules.")
    ] = None,
    engine: EngineName = "local",
    json_output: Json = False,
) -> None:
    """Write one sidecar of a documents directory: embedding, domains or quality."""
    from marin.datakit import DomainsConfig, EmbedConfig, QualityConfig, embed, score_quality
    from marin.datakit import domains as run_domains
    from marin.datakit import quality as run_quality
    from marin.engine import engine_for

    used = _OF_KIND.get(kind)
    if used is None:
        raise MarinError(f"annotate {kind!r}: expected {', '.join(_OF_KIND)}")
    others = {name for names in _OF_KIND.values() for name in names}.difference(used)
    refuse(context, f"has no meaning for {kind}; leave it out", *others)
    config, wanted = QualityConfig(buckets), DomainsConfig(domains=domains)
    progress, where = progress_for(json_output), engine_for(engine)
    if kind == "quality":
        scores = score_quality(
            documents, root, classifier=classifier, engine=where, progress=progress
        )
        directory = run_quality(scores, root, config, dedup=dedup, progress=progress)
    else:
        directory = embed(documents, root, EmbedConfig(), engine=where, progress=progress)
        if kind == "domains":
            directory = run_domains(
                documents, directory, root, wanted, dedup=dedup, progress=progress
            )
    _finish(directory, json_output)


@app.command()
def store(
    documents: Documents,
    root: Root,
    tokens: Annotated[Path, typer.Option(help="The tokens sidecar.")],
    domains: Annotated[Path, typer.Option(help="The domain sidecar.")],
    quality: Annotated[Path, typer.Option(help="The quality sidecar.")],
    dedup: Removals = None,
    validation: Annotated[float, typer.Option(help="Share of documents held out.")] = 0.005,
    seed: Annotated[int, typer.Option(help="Of the shuffle and of the held-out set.")] = 0,
    engine: EngineName = "local",
    json_output: Json = False,
) -> None:
    """Join the sidecars to a store of shuffled cells."""
    from marin.datakit import Sidecars, StoreConfig, build_store
    from marin.engine import engine_for

    directory = build_store(
        documents,
        Sidecars(tokens, domains, quality, dedup),
        root,
        StoreConfig(validation=validation, seed=seed),
        engine=engine_for(engine),
        progress=progress_for(json_output),
    )
    _finish(directory, json_output)


@app.command()
def materialize(
    documents: Documents,
    root: Root,
    dedup: Annotated[Path, typer.Option(help="A sidecar that says which documents stay.")],
    engine: EngineName = "local",
    json_output: Json = False,
) -> None:
    """Write the documents that a sidecar keeps as a documents directory of their own."""
    from marin.datakit import materialize as run
    from marin.engine import engine_for

    directory = run(
        documents, dedup, root, engine=engine_for(engine), progress=progress_for(json_output)
    )
    _finish(directory, json_output)


@app.command("train-quality")
def train_quality(
    labelled: Annotated[
        Path,
        typer.Argument(help="A documents directory with a column `label`: 0 or 1."),
    ],
    root: Root,
    seed: Annotated[int, typer.Option(help="Of the held-out tenth.")] = 0,
    json_output: Json = False,
) -> None:
    """Train a quality classifier from a labelled sample."""
    from marin.datakit import train_quality as run

    _finish(run(labelled, root, seed=seed, progress=progress_for(json_output)), json_output)


@app.command()
def inspect(
    target: Annotated[Path, typer.Argument(help="A build's output, or one directory in it.")],
    document: Annotated[str | None, typer.Option(help="Where this document went, and why.")] = None,
    json_output: Json = False,
) -> None:
    """Say what is in a store, or where one document went and why."""
    from marin.datakit.inspect import describe, trace

    if document is not None:
        answer = trace(target, document)
        if json_output:
            print_json(answer)
            return
        rows = [(key, value) for key, value in answer.items()]
        print_table(f"Document {document}", ("", ""), rows, console=Console())
        return
    answer = describe(target)
    if json_output:
        print_json(answer)
        return
    console = Console()
    for title, table in answer["tables"].items():
        print_table(title, table["columns"], table["rows"], console=console)


def _finish(directory: Path, json_output: bool) -> None:
    from marin.engine import read_manifest
    from marin.engine.manifest import MANIFEST_NAME

    manifest = read_manifest(directory)
    if json_output:
        shown: dict[str, Any] = {"directory": str(directory), "rows": manifest.rows}
        print_json(
            {**shown, "manifest": str(directory / MANIFEST_NAME), "summary": manifest.summary}
        )
        return
    print(directory)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
