"""`marin dedup INPUT... --out DIR`, which is `marin datakit dedup` too."""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from marin.cli.options import refuse
from marin.cli.output import print_json, print_table, progress_for
from marin.errors import MarinError

if TYPE_CHECKING:
    from marin.datakit.dedup.locations import Place

Inputs = Annotated[
    list[str], typer.Argument(help="Document directories or Parquet files, paths or URLs.")
]
Out = Annotated[str, typer.Option("--out", help="Where the sidecars go, a path or a URL.")]
Threshold = Annotated[float, typer.Option(help="Similarity from which a document goes, in (0, 1].")]
Words = Annotated[int, typer.Option(help="Words in a shingle.")]
Characters = Annotated[
    int, typer.Option(help="Characters in a shingle, for scripts without spaces.")
]
UnitName = Annotated[
    Literal["auto", "character"], typer.Option("--unit", help="What shingles count.")
]
Measure = Annotated[Literal["jaccard", "containment"], typer.Option(help="The similarity.")]
Permutations = Annotated[int, typer.Option(help="Most values in a sketch.")]
Seed = Annotated[int, typer.Option(help="Of the sketches.")]
Priority = Annotated[str, typer.Option(help="Sources to keep in preference, best first: a,b,c.")]
Exempt = Annotated[str, typer.Option(help="Sources that lose nothing: a,b,c.")]
MakeIds = Annotated[
    bool,
    typer.Option("--make-ids", help="Name documents file@content#row, whatever ids they have."),
]
Memory = Annotated[str, typer.Option(help="Bytes for candidates, as 512MiB or 4GiB.")]
Threads = Annotated[int, typer.Option(help="0 for all cores.")]
Against = Annotated[
    list[Path] | None, typer.Option(help="An index of an earlier run, whose documents stay.")
]
SaveIndex = Annotated[
    Path | None, typer.Option(help="Also write there an index of the kept documents.")
]
Materialize = Annotated[
    str | None, typer.Option(help="Also write the kept documents there, a path or a URL.")
]
Report = Annotated[Path | None, typer.Option(help="Also write a page on what went, as HTML.")]
Alarm = Annotated[
    float, typer.Option("--alarm-share", help="Warn of a source that loses more than this share.")
]
EngineName = Annotated[
    str, typer.Option("--engine", help="local, a number of processes, auto or ray://HOST:PORT.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def dedup(
    context: typer.Context,
    inputs: Inputs,
    out: Out,
    threshold: Threshold = 0.8,
    words: Words = 5,
    characters: Characters = 5,
    unit: UnitName = "auto",
    measure: Measure = "jaccard",
    permutations: Permutations = 256,
    seed: Seed = 1,
    priority: Priority = "",
    exempt: Exempt = "",
    make_ids: MakeIds = False,
    memory: Memory = "",
    threads: Threads = 0,
    against: Against = None,
    save_index: SaveIndex = None,
    materialize: Materialize = None,
    report: Report = None,
    alarm_share: Alarm = 0.5,
    engine: EngineName = "local",
    json_output: Json = False,
) -> None:
    """Find exact and near duplicates; write which documents stay, beside the documents."""
    from marin.bench.machine import peak_bytes
    from marin.datakit.dedup import DedupConfig, Shingling, dedup_into
    from marin.datakit.dedup import materialize as write_kept
    from marin.datakit.dedup import save_index as write_index
    from marin.datakit.dedup.locations import is_url, output_directory
    from marin.engine import engine_for, read_manifest
    from marin.engine.manifest import MANIFEST_NAME
    from marin.report.dedup import alarms, write_dedup_report

    if unit == "character":
        refuse(context, "shingles of --unit character hold no words; leave it out", "words")
    config = DedupConfig(
        threshold=threshold,
        shingling=Shingling(words, characters, unit),
        measure=measure,
        permutations=permutations,
        seed=seed,
        priority=_names(priority),
        exempt=_names(exempt),
        make_ids=make_ids,
        memory=parse_bytes(memory, "--memory") if memory else None,
        threads=threads,
    )
    if is_url(out) and engine not in ("local", "1"):
        raise MarinError(
            f"--out {out} with --engine {engine}: its tasks leave their work there; "
            "give a path that all of them see"
        )
    start = time.monotonic()
    progress = progress_for(json_output)
    places = [place if is_url(place) else Path(place) for place in inputs]
    _check_outputs(places, against or (), out, save_index, materialize, report)
    with output_directory(out if is_url(out) else Path(out)) as directory:
        dedup_into(
            places,
            directory,
            config,
            against=against or (),
            engine=engine_for(engine),
            progress=progress,
        )
        summary = read_manifest(directory).summary
        for source in alarms(summary["by_source"], alarm_share):
            name = source or "(none)"
            print(f"alarm: source {name} loses more than {alarm_share:.0%}", file=sys.stderr)
        if report is not None:
            write_dedup_report(directory, report, alarm_share=alarm_share)
        if save_index is not None:
            write_index(places, directory, save_index, config, progress=progress)
        if materialize is not None:
            target = materialize if is_url(materialize) else Path(materialize)
            with output_directory(target) as kept:
                write_kept(places, directory, kept, progress=progress)
    seconds = time.monotonic() - start
    if json_output:
        keys = ("documents", "kept", "removed_exact", "removed_fuzzy")
        print_json(
            {key: summary[key] for key in keys}
            | {
                "seconds": round(seconds, 3),
                "peak_bytes": peak_bytes(),
                "manifest": f"{out.rstrip('/')}/{MANIFEST_NAME}",
            }
        )
        return
    print_table(
        "Removed by source",
        ("source", "documents", "exact", "fuzzy", "kept"),
        [
            (
                row["source"] or "(none)",
                row["documents"],
                row["removed_exact"],
                row["removed_fuzzy"],
                row["documents"] - row["removed_exact"] - row["removed_fuzzy"],
            )
            for row in summary["by_source"]
        ],
        console=Console(),
    )
    print(f"{summary['kept']:,} of {summary['documents']:,} documents stay; sidecars in {out}")


def _check_outputs(
    inputs: "Sequence[Place]",
    against: Sequence[Path],
    out: str,
    index: Path | None,
    materialized: str | None,
    report: Path | None,
) -> None:
    """Before the work: raises `MarinError` where one of the outputs must not be written."""
    from marin.datakit.dedup.locations import is_url
    from marin.datakit.dedup.materialize import STAGE as MATERIALIZE
    from marin.datakit.dedup.run import STAGE as DEDUP
    from marin.datakit.dedup.signatures import STAGE as INDEX
    from marin.engine import check_apart, check_named_directory, lies_in
    from marin.report.page import check_page

    sources = [*(Path(place) for place in inputs if not is_url(place)), *against]
    folders = {DEDUP: out, MATERIALIZE: materialized, INDEX: index}
    outputs = {
        stage: Path(place)
        for stage, place in folders.items()
        if place is not None and not is_url(place)
    }
    check_apart(outputs.values())
    for stage, path in outputs.items():
        for source in sources:
            if lies_in(path, source):
                raise MarinError(
                    f"{path}: the output would lie in the input {source}; choose another directory"
                )
        check_named_directory(path, stage)
    if report is not None:
        own = outputs.pop(DEDUP, None)
        check_page(report, [*sources, *outputs.values()], own=own)


def parse_bytes(text: str, option: str) -> int:
    """`512MiB`, `4G`, `1000000`: a number of bytes in units of 1024.

    Raises:
      MarinError: it is none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not match:
        raise MarinError(f"{option} {text!r}: expected a size such as 512MiB or 4GiB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
