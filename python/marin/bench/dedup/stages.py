"""The stages of marin's deduplication apart, from texts in memory, in a process of its own.

python -m marin.bench.dedup.stages OUT.npz FILE...
"""

import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from marin._native import DedupSession
from marin.datakit.dedup import DedupConfig

_MOST_BYTES = 400_000_000
_ROWS = 1000
_MEMORY = 1 << 20
_SCHEMA = pa.schema({"id": pa.large_string(), "text": pa.large_string()})


@dataclass(frozen=True)
class Stages:
    """Bytes of text over seconds is the speed of a stage; `candidate_bytes` is the text of all
    documents that are compared with another.
    """

    text_bytes: int
    signature_seconds: float
    candidate_bytes: int
    verification_seconds: float


def run(files: Sequence[Path]) -> Stages:
    """Signs distinct texts, so that none is skipped as a copy, then shingles, compares and decides
    every candidate. The engine has next to no memory, so that no shingle set is left from signing.
    """
    distinct = pl.DataFrame(schema={"id": pl.String, "text": pl.String})
    for file in files:
        if distinct["text"].str.len_bytes().sum() >= _MOST_BYTES:
            break
        texts = pl.read_parquet(file, columns=["id", "text"])
        distinct = pl.concat([distinct, texts]).unique("text", maintain_order=True)
    batches = distinct.to_arrow().cast(_SCHEMA).combine_chunks().to_batches(_ROWS)
    total = sum(map(_text_bytes, batches))
    firsts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    config = DedupConfig()
    bands, rows = config.bands
    with TemporaryDirectory() as folder, ThreadPoolExecutor(config.thread_count) as pool:
        session = DedupSession(
            int(firsts[-1]),
            words=config.shingling.words,
            characters=config.shingling.characters,
            unit=config.shingling.unit,
            bands=bands,
            rows=rows,
            seed=config.seed,
            threshold=config.threshold,
            measure=config.measure,
            priority=[],
            exempt=[],
            first_anchor=int(firsts[-1]),
            memory=_MEMORY,
            directory=folder,
        )

        def sign(number: int) -> None:
            batch = batches[number]
            session.add(int(firsts[number]), batch.column("id"), batch.column("text"))

        signing = _seconds(lambda: list(pool.map(sign, range(len(batches)))))
        session.repeated_id()
        needed = session.plan(config.thread_count)
        wanted = [
            needed[slice(*np.searchsorted(needed, firsts[number : number + 2]))]
            for number in range(len(batches))
        ]

        def verify(number: int) -> None:
            rows = wanted[number] - np.uint32(firsts[number])
            session.add_texts(wanted[number], rows, batches[number].column("text"))

        verifying = _seconds(lambda: list(pool.map(verify, range(len(batches)))))
        verifying += _seconds(lambda: session.resolve(config.thread_count))
    candidates = sum(
        _text_bytes(batch.take(pa.array(numbers - np.uint32(first))))
        for batch, numbers, first in zip(batches, wanted, firsts, strict=False)
    )
    return Stages(total, signing, candidates, verifying)


def _text_bytes(batch: pa.RecordBatch) -> int:
    return pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    out, *files = sys.argv[1:]
    np.savez(out, **vars(run([Path(file) for file in files])))


if __name__ == "__main__":
    main()
