"""Batches of many row groups are handed out once each, by work in proportion to their number."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marin.datakit.dedup import DedupConfig, signatures
from marin.datakit.dedup.inputs import find_files, for_each_batch
from marin.datakit.dedup.run import _file_of
from marin.engine import Silent, Threads


@dataclass(frozen=True)
class Group:
    """As many batches of one row as its `rows`."""

    first: int
    rows: int

    def batches(self, columns: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
        del columns
        yield from ((self.first + row, cast(Any, None)) for row in range(self.rows))


def walk(groups: list[Group], threads: int) -> Counter[int]:
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def work(first: int, batch: pa.RecordBatch) -> None:
        del batch
        with lock:
            seen[first] += 1

    for_each_batch(cast(Any, groups), ["text"], threads, work)
    return seen


def test_every_batch_comes_once_for_any_number_of_threads() -> None:
    groups = [Group(100 * i, i % 4) for i in range(30)]
    expected = Counter(g.first + row for g in groups for row in range(g.rows))
    for threads in (1, 2, 7, 50):
        assert walk(groups, threads) == expected


def test_many_row_groups_take_time_in_proportion() -> None:
    begin = time.process_time()
    assert len(walk([Group(i, 1) for i in range(20_000)], threads=8)) == 20_000
    # 0.1 s, where comparing every group with all others takes 7 s.
    assert time.process_time() - begin < 2


def test_a_document_is_in_the_last_file_that_begins_before_it() -> None:
    files = [SimpleNamespace(first=first, name=str(i)) for i, first in enumerate([0, 3, 3, 7, 7])]
    found = [_file_of(cast(Any, files), document).name for document in (0, 2, 3, 6, 7, 9)]
    assert found == ["0", "0", "2", "2", "4", "4"]


def test_a_task_takes_no_more_threads_than_its_worker_has_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"id": ["a"], "text": ["cat"]}), tmp_path / "a.parquet")
    files = find_files([tmp_path / "a.parquet"], make_ids=False)
    taken = []

    def watched(groups: Any, columns: Any, threads: int, work: Any) -> None:
        taken.append(threads)
        for_each_batch(groups, columns, threads, work)

    monkeypatch.setattr(signatures, "for_each_batch", watched)
    monkeypatch.setattr(pa, "cpu_count", lambda: 3)
    for threads in (64, 2):
        out = tmp_path / f"signed-{threads}"
        config = DedupConfig(threads=threads)
        signatures.sign_files(files, out, config, Threads(1), Silent())
    assert taken == [3, 2]


def test_signatures_are_written_window_by_window_and_the_same_for_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"{i:03d}" for i in range(200)]
    texts = [f"{i} " * (i % 30) for i in range(200)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ids, "text": texts}), path, row_group_size=7)
    files = find_files([path], make_ids=False)
    at_once = []

    def watched(groups: Any, columns: Any, threads: int, work: Any) -> None:
        at_once.append(sum(group.rows for group in groups))
        for_each_batch(groups, columns, threads, work)

    monkeypatch.setattr(signatures, "for_each_batch", watched)
    monkeypatch.setattr(signatures, "_WINDOW_ROWS", 40, raising=False)
    monkeypatch.setattr(pa, "cpu_count", lambda: 8)
    (one,), (eight,) = (
        signatures.sign_files(
            files, tmp_path / f"{n}", DedupConfig(threads=n), Threads(1), Silent()
        )
        for n in (1, 8)
    )
    assert max(at_once) < 40 + 7
    assert pq.read_table(one)["id"].to_pylist() == ids
    assert one.read_bytes() == eight.read_bytes()
