"""`marin bench dedup`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from marin.cli.options import refuse
from marin.cli.output import print_json, print_table, progress_for
from marin.errors import MarinError

Peers = Annotated[bool, typer.Option("--peers", help="Measure the other libraries too.")]
Only = Annotated[str, typer.Option(help="Which of them: gaoya,rensa,...; default: all.")]
Corpus = Annotated[Path | None, typer.Option(help="A documents directory to measure on.")]
MakeCorpus = Annotated[
    bool, typer.Option("--make-corpus", help="Download package versions to measure on (gigabytes).")
]
Packages = Annotated[int, typer.Option(help="How many packages of the list.")]
Versions = Annotated[int, typer.Option(help="How many releases of each.")]
Cache = Annotated[Path, typer.Option(help="Where the corpus is kept.")]
Megabytes = Annotated[
    int, typer.Option("--peer-megabytes", help="Text for all tools side by side.")
]
Runs = Annotated[int, typer.Option(help="Runs of which the median counts.")]
Save = Annotated[Path | None, typer.Option(help="Also write the results to this JSON file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def bench_dedup(
    context: typer.Context,
    peers: Peers = False,
    only: Only = "",
    corpus: Corpus = None,
    make_corpus: MakeCorpus = False,
    packages: Packages = 26,
    versions: Versions = 8,
    cache: Cache = Path("marin-bench"),
    peer_megabytes: Megabytes = 480,
    runs: Runs = 3,
    save: Save = None,
    json_output: Json = False,
) -> None:
    """Speed, memory and quality of deduplication, against exact truth and other libraries."""
    from marin.bench.dedup import PACKAGES, BenchConfig, measure
    from marin.bench.dedup import make_corpus as download
    from marin.bench.dedup.peers import PEERS
    from marin.bench.results import check_outputs
    from marin.engine import write_json

    if not peers:
        refuse(context, "names other libraries; add --peers", "only")
    if not make_corpus:
        refuse(context, "for a new corpus; add --make-corpus", "packages", "versions", "cache")
    elif corpus is not None:
        raise MarinError("--corpus DIR or --make-corpus: give one of them")
    check_outputs(save, cache if make_corpus else None, inputs=[corpus] if corpus else [])
    progress = progress_for(json_output)
    if make_corpus:
        names = PACKAGES[:packages]
        corpus = download(cache, packages=names, versions=versions, progress=progress)
    if corpus is None:
        raise MarinError("no corpus: give --corpus DIR, or --make-corpus to download one")
    files = sorted(corpus.rglob("*.parquet"))
    if not files:
        raise MarinError(f"{corpus}: no Parquet file there")
    chosen = [name for name in only.split(",") if name] or list(PEERS)
    config = BenchConfig(peer_megabytes=peer_megabytes, runs=runs)
    found = measure(files, chosen if peers else [], config, progress=progress)
    if save is not None:
        write_json(save, found)
    if json_output:
        print_json(found)
        return
    print_table(
        "Deduplication",
        ("tool", "version", "metric", "value", "unit"),
        [
            tuple(r[k] for k in ("tool", "version", "metric", "value", "unit"))
            for r in found["results"]
        ],
        console=Console(),
    )
