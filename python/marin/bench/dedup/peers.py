"""Other deduplicators, each as its documentation shows it: texts in, a list of kept ones out.

Each gets 5-grams of lower-cased words where it lets the caller choose, a threshold of 0.8 and 128
hash functions, or its own published setting. A document is dropped if it is a candidate of an
earlier kept one, unless the library brings its own way to choose.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

THRESHOLD = 0.8
PERMUTATIONS = 128
BANDS = 16
_BATCH = 4096

Deduplicator = Callable[[Sequence[str]], np.ndarray]


def gaoya(texts: Sequence[str]) -> np.ndarray:
    from gaoya.minhash import MinHashStringIndex

    index = MinHashStringIndex(
        32, THRESHOLD, None, None, PERMUTATIONS, "word", True, (5, 5), id_container="vec"
    )
    index.par_bulk_insert_docs(list(range(len(texts))), list(texts))
    return _first_of(index.par_bulk_query(list(texts)))


def rensa(texts: Sequence[str]) -> np.ndarray:
    import rensa as library

    sketches = [
        sketch
        for start in range(0, len(texts), _BATCH)
        for sketch in library.RMinHash.from_token_sets(
            [_shingles(text) for text in texts[start : start + _BATCH]], PERMUTATIONS, 42
        )
    ]
    index = library.RMinHashLSH(THRESHOLD, PERMUTATIONS, BANDS)
    index.insert_pairs(list(enumerate(sketches)))
    return _first_of(index.query_all(sketches))


def datasketch(texts: Sequence[str]) -> np.ndarray:
    from datasketch import MinHash, MinHashLSH

    index = MinHashLSH(threshold=THRESHOLD, num_perm=PERMUTATIONS)
    keep = np.ones(len(texts), bool)
    for number, text in enumerate(texts):
        sketch = MinHash(PERMUTATIONS)
        sketch.update_batch(shingle.encode() for shingle in _shingles(text))
        if index.query(sketch):
            keep[number] = False
        else:
            index.insert(number, sketch)
    return keep


def fastsketchlsh(texts: Sequence[str]) -> np.ndarray:
    import FastSketchLSH as library

    sketcher = library.FastSimilaritySketch(PERMUTATIONS, 42)
    sketches = np.concatenate(
        [
            np.asarray(sketcher.batch([_shingles(text) for text in texts[start : start + _BATCH]]))
            for start in range(0, len(texts), _BATCH)
        ]
    )
    index = library.LSH(PERMUTATIONS, BANDS)
    index.insert(sketches)
    return _first_of(index.query(sketches))


def dupekit(texts: Sequence[str]) -> np.ndarray:
    import dupekit as library
    import pyarrow as pa

    step = library.Transformation
    first: dict[int, int] = {}
    parent = list(range(len(texts)))

    def root(number: int) -> int:
        while parent[number] != number:
            parent[number] = parent[parent[number]]
            number = parent[number]
        return number

    for start in range(0, len(texts), _BATCH):
        batch = pa.record_batch({"text": pa.array(texts[start : start + _BATCH], pa.string())})
        steps = [
            step.CleanText("text", "clean"),
            step.MinHash("clean", "sketch", 286, 5, 42),
            step.MinHashLSH("sketch", "buckets", 26),
        ]
        for offset, buckets in enumerate(library.transform(batch, steps)["buckets"].to_pylist()):
            for bucket in buckets:
                low, high = sorted(
                    (root(first.setdefault(bucket, start + offset)), root(start + offset))
                )
                parent[high] = low
    return np.array([root(number) == number for number in range(len(texts))])


def datatrove(texts: Sequence[str]) -> np.ndarray:
    from datatrove.data import Document
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.dedup import minhash as library

    documents = [Document(text=text, id=str(number)) for number, text in enumerate(texts)]
    keep = np.zeros(len(texts), bool)

    def note(kept: Iterable[Any], rank: int, world_size: int) -> Iterator[Any]:
        del rank, world_size
        for document in kept:
            keep[int(document.id)] = True
            yield document

    config = library.MinhashConfig(n_grams=5)
    with TemporaryDirectory() as folder:
        signatures, buckets, clusters = (f"{folder}/{name}" for name in "sbc")
        for number, (tasks, steps) in enumerate(
            [
                (1, [documents, library.MinhashDedupSignature(signatures, config)]),
                (
                    config.num_buckets,
                    [library.MinhashDedupBuckets(signatures, buckets, config=config)],
                ),
                (1, [library.MinhashDedupCluster(buckets, clusters, config)]),
                (1, [documents, library.MinhashDedupFilter(clusters), note]),
            ]
        ):
            log = f"{folder}/log{number}"
            LocalPipelineExecutor(steps, tasks=tasks, workers=1, logging_dir=log).run()
    return keep


@dataclass(frozen=True)
class Peer:
    """`distribution` must be installed; `keep` says which texts stay, bool[texts]. A slow one is
    timed on a `part` of what the others read.
    """

    distribution: str
    keep: Deduplicator
    part: float = 1.0


PEERS = {
    "gaoya": Peer("gaoya", gaoya),
    "rensa": Peer("rensa", rensa, part=0.25),
    "FastSketchLSH": Peer("fastsketchlsh", fastsketchlsh, part=0.25),
    "dupekit": Peer("marin-dupekit", dupekit, part=0.25),
    "datasketch": Peer("datasketch", datasketch, part=0.25),
    "datatrove": Peer("datatrove", datatrove, part=0.05),
}
"""By the name shown."""


def _shingles(text: str) -> list[str]:
    words = re.findall(r"\w+", text.lower())
    return list({" ".join(words[i : i + 5]) for i in range(len(words) - 4)}) or [" ".join(words)]


def _first_of(candidates: Iterable[Iterable[int]]) -> np.ndarray:
    keep: list[bool] = []
    for number, found in enumerate(candidates):
        keep.append(not any(other < number and keep[other] for other in found))
    return np.array(keep)
