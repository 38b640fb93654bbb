"""A small source of packed rows without shards: text with structure that a model can learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from marin.model import HeroConfig, preset
from marin.stream import Batch
from marin.train.curriculum import Segment
from marin.train.source import Leg, Source

VOCAB = 64
CELLS = ("c00q0", "c00q1", "c01q0")


def tiny_model(**changes: object) -> HeroConfig:
    small = {"hidden": 32, "layers": 2, "heads": 2, "head_dim": 16, "latent": 16}
    small |= {"expert_width": 16, "experts": 8, "gate_rank": 8, "vocab": VOCAB, "window": 16}
    small |= {"transport": "local", "remat": "none"}
    return replace(preset("tiny"), **{**small, **changes})


def fake_source(segments: tuple[Segment, ...]) -> Source:
    starts: list[tuple[int, int, Segment]] = []
    step = row = 0
    for segment in segments:
        starts.append((step, row, segment))
        step += segment.steps
        row += segment.steps * segment.batch_size

    def read(wanted: int) -> Batch:
        first, first_row, segment = next(s for s in reversed(starts) if s[0] <= wanted)
        ids = first_row + (wanted - first) * segment.batch_size + np.arange(segment.batch_size)
        return rows(wanted, ids, segment.seq_len)

    return Source(segments, read, CELLS, (Leg(0, Path("none"), "fake"),), {})


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
