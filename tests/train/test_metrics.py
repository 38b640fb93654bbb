"""`metrics.jsonl` over kills, and what leaves it."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from support.training import VOCAB, rows

from marin.errors import MarinError
from marin.stream import Batch
from marin.train.curriculum import Curriculum, Segment
from marin.train.metrics import MetricsLog, read_metrics
from marin.train.run import _figures
from marin.train.telemetry import CellTokens
from marin.train.unigram import entropy, unigram_loss


def test_a_log_cut_to_a_checkpoint_goes_on_without_gap_or_duplicate(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(5):
        log.write({"step": step})
        if step == 2:
            length = log.sync()
    log.close()
    with path.open("ab") as file:
        file.write(b'{"step": 5, "lo')  # killed in the middle of a line
    log = MetricsLog(path, length)
    for step in range(3, 6):
        log.write({"step": step})
    log.close()
    assert [record["step"] for record in read_metrics(path)] == list(range(6))


def test_a_log_shorter_than_its_checkpoint_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 0}\n')
    with pytest.raises(MarinError, match="12 bytes, but the checkpoint was saved after 40"):
        MetricsLog(path, 40)
    assert path.read_text() == '{"step": 0}\n'


def test_numbers_that_json_lacks_come_back(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.write({"step": 0, "loss": math.nan, "cells": {"a": 1}, "rows": [1.5, -math.inf]})
    log.close()
    [record] = read_metrics(tmp_path / "metrics.jsonl")
    assert math.isnan(record["loss"])
    assert record["cells"] == {"a": 1}


def test_the_result_of_a_run_needs_little_more_memory_than_a_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(200):
        line = {"step": step, "tokens": 8 * step, "loss": float(step), "load": ["x" * 50] * 1_000}
        log.write(line | ({"unigram_loss": 6.5} if step == 0 else {}))
    log.close()
    tracemalloc.start()
    figures = _figures(path, 200)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert figures == {
        "steps": 200, "tokens": 1_592, "final_loss": 199.0, "tail_loss": 194.5,
        "unigram_loss": 6.5,
    }  # fmt: skip
    assert most < path.stat().st_size / 10


def test_cell_tokens_count_past_32_bits() -> None:
    cells = CellTokens(("a", "b"), {"a": 2**40})
    cells.add(np.array([2**20, 1]), 2**18)
    assert cells.to_json() == {"a": 2**40 + 2**38, "b": 2**18}


def test_a_token_beyond_the_vocabulary_is_one_line() -> None:
    batch = rows(0, np.arange(2), 32)
    with pytest.raises(MarinError, match=r"model.vocab = 3: batch 0 holds token \d+"):
        unigram_loss(lambda step: batch, Curriculum.plan((Segment(1, 2, 32, "a"),), 16), 3)


@pytest.mark.parametrize(
    ("segment", "batches"),
    [
        (Segment(270, 4, 512, "a"), 270),
        (Segment(2_000, 64, 4_096, "a"), 128),
        (Segment(390_251, 11_264, 4_096, "a"), 8),
        (Segment(3, 11_264, 4_096, "a"), 3),
    ],
)
def test_a_unigram_model_is_of_few_tokens_over_the_whole_run(
    segment: Segment, batches: int
) -> None:
    read = []

    def batch(step: int) -> Batch:
        read.append(step)
        return rows(step, np.arange(2), 32)

    unigram_loss(batch, Curriculum.plan((segment,), 16), VOCAB)
    assert len(read) == len(set(read)) == batches
    assert (read[0], read[-1]) == (0, segment.steps - 1)


def test_entropy_of_equal_counts_is_the_log_of_their_number() -> None:
    assert entropy(np.array([0, 5, 5, 5, 5])) == pytest.approx(math.log(4))
    assert entropy(np.zeros(3, np.int64)) == 0.0
