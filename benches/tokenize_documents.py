"""Tokenization beside the tokenizers library's own batch call, on the same cores, in one run.

    python benches/tokenize_documents.py DOCUMENTS [--tokenizer FILE] [--out FILE]

DOCUMENTS is a documents directory, as `marin datakit build` and `marin quickstart` leave. The
library gets lists of the same texts, already in memory, and its encodings are dropped; our stage
reads Parquet and leaves a finished sidecar. Runs of the two take turns. The peak memory is that of
a process of its own which runs the stage alone.
"""

import argparse
import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow.compute as pc
from tokenizers import Tokenizer

from marin import datakit
from marin.bench.machine import peak_bytes
from marin.bench.results import Results
from marin.datakit.parts import part_names, read_groups
from marin.datakit.tokenizer import open_tokenizer
from marin.engine import read_manifest, write_json

RUNS = 3


def library(tokenizer: Tokenizer, documents: Path) -> float:
    """Seconds inside `encode_batch_fast` for all texts, one call per row group."""
    seconds = 0.0
    for part in part_names(read_manifest(documents)):
        for group in read_groups(documents / part, ["text"]):
            texts = group["text"].drop_null().to_pylist()
            start = time.perf_counter()
            tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            seconds += time.perf_counter() - start
    return seconds


def stage(documents: Path, tokenizer: Path) -> float:
    """Seconds of the whole stage, Parquet to finished sidecar."""
    root = Path(tempfile.mkdtemp(prefix="tokens-"))
    start = time.perf_counter()
    datakit.tokenize(documents, tokenizer, root)
    seconds = time.perf_counter() - start
    shutil.rmtree(root)
    return seconds


def peak_of_stage(documents: Path, tokenizer: Path) -> int:
    """Largest resident memory of a fresh process that runs the stage."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak, (documents, tokenizer))


def _peak(documents: Path, tokenizer: Path) -> int:
    stage(documents, tokenizer)
    return peak_bytes()


def add_rates(results: Results, megabytes: float, runs: Mapping[str, Sequence[float]]) -> None:
    """Each tool's rates of its runs in seconds, and ours over the library's, turn by turn."""
    rates = {tool: [megabytes / one for one in seconds] for tool, seconds in runs.items()}
    for tool, values in rates.items():
        results.add(tool, "text to tokens", statistics.median(values), "MB/s", values)
    turns = zip(rates["marin"], rates["tokenizers"], strict=True)
    ratios = [ours / theirs for ours, theirs in turns]
    results.add("marin", "rate over the library's", statistics.median(ratios), "", ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("documents", type=Path)
    parser.add_argument("--tokenizer", default=None, help="tokenizer.json; default: train 16,384")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    documents: Path = options.documents
    size = sum(
        pc.sum(pc.binary_length(group["text"])).as_py() or 0
        for part in part_names(read_manifest(documents))
        for group in read_groups(documents / part, ["text"])
    )
    root = Path(tempfile.mkdtemp(prefix="tokenizer-"))
    if options.tokenizer is None:
        directory = datakit.train_bpe(documents, root, datakit.BPEConfig(vocab_size=16384))
    else:
        directory = datakit.load_tokenizer(options.tokenizer, root)
    tokenizer = open_tokenizer(directory)
    runs: dict[str, list[float]] = {"tokenizers": [], "marin": []}
    for _ in range(RUNS):
        runs["tokenizers"].append(library(tokenizer, documents))
        runs["marin"].append(stage(documents, directory))
    results = Results()
    results.add("marin", "text", size / 1e6, "MB")
    add_rates(results, size / 1e6, runs)
    results.add("marin", "peak memory", peak_of_stage(documents, directory) / 2**20, "MiB")
    for line in results.lines:
        print(f"{line['tool']:12} {line['metric']:32} {line['value']:12.4g} {line['unit']}")
    write_json(options.out or Path(__file__).parent / "results" / "tokenize.json", results.report())
    shutil.rmtree(root)


if __name__ == "__main__":
    main()
