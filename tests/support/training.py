"""A small source of packed rows without shards: text with structure that a model can learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from marin.model import HeroConfig, preset
from marin.stream import Batch
from marin.train.curriculum import Segment
from marin.train.source import Leg, Source

VOCAB = 64
CELLS = ("c00q0", "c00q1", "c01q0")


DROPPING = {"transport": "pooled_wave", "transport_capacity": 0.5}


def tiny_model(**changes: object) -> HeroConfig:
    small = {"hidden": 32, "layers": 2, "heads": 2, "head_dim": 16, "latent": 16}
    small |= {"expert_width": 16, "experts": 8, "gate_rank": 8, "vocab": VOCAB, "window": 16}
    small |= {"transport": "local", "remat": "none"}
    return replace(preset("tiny"), **{**small, **changes})


def fake_source(
    segments: tuple[Segment, ...],
    store: Path = Path("none"),
    *,
    process: int = 0,
    processes: int = 1,
) -> Source:
    starts: list[tuple[int, int, Segment]] = []
    step = row = 0
    for segment in segments:
        starts.append((step, row, segment))
        step += segment.steps
        row += segment.steps * segment.batch_size

    def read_whole(wanted: int) -> Batch:
        first, first_row, segment = next(s for s in reversed(starts) if s[0] <= wanted)
        ids = first_row + (wanted - first) * segment.batch_size + np.arange(segment.batch_size)
        return rows(wanted, ids, segment.seq_len)

    def read(wanted: int) -> Batch:
        whole = read_whole(wanted)
        own = len(whole.row_ids) // processes
        ids = whole.row_ids[process * own : (process + 1) * own]
        return rows(wanted, ids, whole.seq_len)

    def targets(count: int) -> np.ndarray:
        total = 0
        for segment in segments:
            own = min(count, segment.steps * segment.batch_size)
            total += own * segment.seq_len
            count -= own
        return np.full(len(CELLS), total / len(CELLS))

    return Source(
        segments=segments,
        read=read,
        read_whole=read_whole,
        cells=CELLS,
        legs=(Leg(0, Path("none"), "fake"),),
        schedule={},
        tokenizer="none",
        store=store,
        targets=targets,
    )


HELD_OUT = {"c00q0": [5, 40], "c00q1": [3], "c02q1": [30, 1]}
"""Lengths of held-out documents by cell."""


def write_held_out(store: Path) -> None:
    (store / "validation").mkdir()
    draw = np.random.default_rng(0)
    cells = [cell for cell, lengths in HELD_OUT.items() for _ in lengths]
    tokens = [draw.integers(1, VOCAB, n).tolist() for ns in HELD_OUT.values() for n in ns]
    table = pa.table({"cell": cells, "tokens": pa.array(tokens, pa.large_list(pa.uint32()))})
    with (
        pa.OSFile(str(store / "validation" / "part-00000.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, table.schema) as writer,
    ):
        writer.write_table(table)


def rows(step: int, ids: np.ndarray, seq_len: int) -> Batch:
    """Rows that depend on their ids alone: documents that count up in a stride of their own."""
    tokens = np.empty((len(ids), seq_len), np.int32)
    segments = np.empty_like(tokens)
    positions = np.empty_like(tokens)
    for index, row in enumerate(ids):
        draw = np.random.default_rng(int(row))
        cut, pad = int(draw.integers(4, seq_len - 8)), int(draw.integers(0, 4))
        lengths = (cut, seq_len - cut - pad, pad)
        parts = [
            (draw.integers(VOCAB) + np.arange(n) * draw.integers(1, 4)) % (VOCAB // 2)
            for n in lengths
        ]
        tokens[index] = np.concatenate(parts)
        segments[index] = np.repeat([1, 2, 0], lengths)
        positions[index] = np.concatenate([np.arange(n) for n in lengths])
    mask = np.zeros(tokens.shape, bool)
    mask[:, :-1] = (segments[:, :-1] == segments[:, 1:]) & (segments[:, :-1] > 0)
    return Batch(step, ids, tokens, segments, positions, mask, (ids % len(CELLS)).astype(np.uint16))
