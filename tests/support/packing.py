"""Small stores and schedules."""

import json
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from marin.engine import write_manifest


def write_store(
    root: Path, lengths: dict[str, list[int]], *, rows_per_batch: int = 7, files: int = 2
) -> Path:
    """A store whose token `i` of document `d` of the `c`-th cell is a hash of (c, d, i)."""
    directory = root / "store"
    rows = {}
    for number, (cell, counts) in enumerate(lengths.items()):
        (directory / cell).mkdir(parents=True, exist_ok=True)
        bounds = np.linspace(0, len(counts), files + 1).astype(int)
        for part, (begin, end) in enumerate(pairwise(bounds)):
            name = f"{cell}/part-{part:05d}.arrow"
            table = pa.table(
                {
                    "id": pa.array([f"{cell}-{d}" for d in range(begin, end)], pa.string()),
                    "source": pa.array(["test"] * (end - begin), pa.string()),
                    "tokens": pa.array(
                        [document_tokens(number, d, counts[d]) for d in range(begin, end)],
                        pa.large_list(pa.uint32()),
                    ),
                }
            )
            with pa.ipc.new_file(directory / name, table.schema) as writer:
                writer.write_table(table, max_chunksize=rows_per_batch)
            rows[name] = int(end - begin)
    cells = {
        cell: {"documents": len(counts), "tokens": sum(counts)} for cell, counts in lengths.items()
    }
    tokenizer = {"hash": "tokenizer-1", "vocab_size": 50_000, "bos": 0, "eos": 1}
    write_manifest(
        directory,
        "store",
        parameters={},
        inputs={},
        rows=rows,
        summary={"cells": cells, "tokenizer": tokenizer, "domains": []},
    )
    return directory


def document_tokens(cell: int, document: int, length: int) -> np.ndarray:
    start = (int(cell) * 7919 + document * 104_729) % 49_999
    return ((start + np.arange(length, dtype=np.int64) * 31) % 49_999 + 1).astype(np.uint32)


@dataclass(frozen=True)
class FakeRun:
    steps: int
    batch_size: int
    seq_len: int


@dataclass(frozen=True)
class FakeSchedule:
    """Rows dealt to cells by a seeded generator; documents in another permutation per epoch."""

    documents_per_cell: dict[str, int]
    weights: tuple[float, ...]
    run_list: tuple[tuple[int, int, int], ...]
    seed: int = 0

    @property
    def cells(self):
        return list(self.documents_per_cell)

    @property
    def runs(self):
        return [FakeRun(*run) for run in self.run_list]

    @property
    def seq_lens(self):
        return list(dict.fromkeys(run[2] for run in self.run_list))

    @property
    def fingerprint(self):
        return f"fake-{self.to_json()}"

    def _table(self):
        generator = np.random.default_rng(self.seed)
        stages, cells, index = [], [], []
        for stage, length in enumerate(self.seq_lens):
            rows = sum(run.steps * run.batch_size for run in self.runs if run.seq_len == length)
            dealt = generator.choice(len(self.cells), rows, p=self.weights)
            ranks = np.zeros(rows, np.int64)
            for cell in range(len(self.cells)):
                ranks[dealt == cell] = np.arange((dealt == cell).sum())
            stages.append(np.full(rows, stage))
            cells.append(dealt)
            index.append(ranks)
        return (
            np.concatenate(stages).astype(np.uint16),
            np.concatenate(cells).astype(np.uint16),
            np.concatenate(index).astype(np.int64),
        )

    def counts(self):
        stages, cells, _ = self._table()
        table = np.zeros((len(self.seq_lens), len(self.cells)), np.int64)
        np.add.at(table, (stages, cells), 1)
        return table

    def rows(self, start, count):
        return tuple(column[start : start + count] for column in self._table())

    def documents(self, cell, start, count):
        total = list(self.documents_per_cell.values())[cell]
        positions = np.arange(start, start + count)
        order = np.empty(count, np.int64)
        for epoch in np.unique(positions // total):
            here = positions // total == epoch
            shuffled = np.random.default_rng((self.seed, cell, int(epoch))).permutation(total)
            order[here] = shuffled[positions[here] % total]
        return order

    def to_json(self):
        return json.dumps(
            [self.documents_per_cell, self.weights, self.run_list, self.seed], sort_keys=True
        )

    @classmethod
    def from_json(cls, text):
        documents, weights, runs, seed = json.loads(text)
        return cls(documents, tuple(weights), tuple(map(tuple, runs)), seed)
