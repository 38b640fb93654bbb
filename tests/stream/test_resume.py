"""Killed and resumed, on any number of readers and processes: the same rows in the same order."""

import json
import os
import signal
from collections import Counter

import numpy as np
import pytest
from support.packing import make_schedule, write_store

from marin.errors import MarinError
from marin.packing import ShardConfig, pack, plan
from marin.stream import Cursor, Stream

LENGTHS = {"c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5], "c00q1": [8] * 5 + [2] * 9}
# JAX, if another test has started it, warns of forks; the children do not use it.
pytestmark = pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("resume")
    stages = [(0.0, 16, 7), (0.5, 32, 3)]
    schedule = make_schedule(dict.fromkeys(LENGTHS, 0.5), stages, 2688)
    planned = plan(write_store(root, LENGTHS), schedule, root)
    return pack(planned, root, ShardConfig(shard_tokens=128, block_tokens=64))


def in_child(work):
    """Runs `work` in a forked process; returns how it ended."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_run_killed_at_every_batch_sees_the_undisturbed_rows(tmp_path, shards):
    undisturbed = [batch.row_ids.tolist() for batch in Stream(shards).iterate()]
    cursor_file, log = tmp_path / "cursor.json", tmp_path / "rows"
    cursor_file.write_text(json.dumps(Stream(shards).cursor(0).to_json()))
    for step in range(len(undisturbed)):
        readers = (1, 2, 7)[step % 3]

        def train_until_killed(readers=readers):
            cursor = Cursor.from_json(cursor_file.read_text())
            parts = [
                next(iter(Stream(shards, reader=(i, readers), cursor=cursor).iterate(prefetch=3)))
                for i in range(readers)
            ]
            rows = np.concatenate([part.row_ids for part in parts]).tolist()
            with log.open("a") as file:
                file.write(json.dumps(rows) + "\n")
            following = Stream(shards, cursor=cursor).cursor(cursor.step + 1)
            cursor_file.write_text(json.dumps(following.to_json()))
            os.kill(os.getpid(), signal.SIGKILL)

        assert in_child(train_until_killed) == -signal.SIGKILL
    seen = [json.loads(line) for line in log.read_text().splitlines()]
    assert seen == undisturbed


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_processes_read_their_slices_at_the_same_time(tmp_path, shards, processes):
    whole = Stream(shards)  # opened before the fork, and used after it
    whole.batch(0)
    children = []
    for index in range(processes):
        child = os.fork()
        if not child:
            try:
                stream = Stream(shards, reader=(index, processes))
                batches = list(stream.iterate())
                assert np.array_equal(whole.batch(0).row_ids[:1], [0])
                np.savez(
                    tmp_path / f"{index}.npz",
                    rows=np.concatenate([batch.row_ids for batch in batches]),
                    sums=np.concatenate([batch.tokens.sum(axis=1) for batch in batches]),
                )
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert all(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 for child in children)
    parts = [np.load(tmp_path / f"{index}.npz") for index in range(processes)]
    found = dict(
        zip(
            np.concatenate([part["rows"] for part in parts]).tolist(),
            np.concatenate([part["sums"] for part in parts]).tolist(),
            strict=True,
        )
    )
    expected = {
        row: total
        for batch in whole.iterate()
        for row, total in zip(batch.row_ids.tolist(), batch.tokens.sum(axis=1), strict=True)
    }
    assert found == expected


def test_a_run_killed_at_every_batch_goes_on_in_1_2_and_3_processes(tmp_path, shards):
    """Every life is as many processes as its number says, and all of them are killed."""
    undisturbed = [batch.row_ids.tolist() for batch in Stream(shards).iterate()]
    cursor = Stream(shards).cursor(0)
    for step, expected in enumerate(undisturbed):
        processes = (1, 2, 3)[step % 3]
        saved = json.dumps(cursor.to_json())

        def read_until_killed(index, processes=processes, saved=saved):
            own = Cursor.from_json(saved)
            stream = Stream(shards, reader=(index, processes), cursor=own)
            rows = next(iter(stream.iterate(prefetch=3))).row_ids.tolist()
            (tmp_path / f"{index}.json").write_text(json.dumps(rows))
            os.kill(os.getpid(), signal.SIGKILL)

        for index in range(processes):
            assert in_child(lambda index=index: read_until_killed(index)) == -signal.SIGKILL
        parts = [json.loads((tmp_path / f"{index}.json").read_text()) for index in range(processes)]
        assert [row for part in parts for row in part] == expected
        cursor = Stream(shards, cursor=cursor).cursor(step + 1)


def test_kills_and_changed_batch_sizes_together_keep_the_sequence(shards):
    """Batch sizes change at every resume, to any that divides what is left of the row length."""
    rows, cursor = [], Stream(shards).cursor(0)
    sizes = iter([7, 1, 5, 2, 3, 4, 6] * 30)
    total = Stream(shards).batches.rows
    while cursor.next_row < total:
        size = next(sizes)
        try:
            stream = Stream(shards, cursor=cursor, batch_size=size)
        except MarinError:
            continue
        batch = next(iter(stream.iterate(prefetch=2)))
        rows += batch.row_ids.tolist()
        cursor = Cursor.from_json(json.dumps(stream.cursor(batch.step + 1).to_json()))
    assert rows == list(range(total))
    assert len({size for _, size in cursor.batches}) > 3


def test_10001_rows_come_once_for_any_number_of_readers(tmp_path):
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 4, 137)], 10_001 * 4)
    planned = plan(write_store(tmp_path, {"c00q0": [3, 1, 2, 4, 9]}), schedule, tmp_path)
    streams = {
        readers: [Stream(planned, reader=(index, readers)) for index in range(readers)]
        for readers in (1, 2, 7)
    }
    for readers in streams.values():
        rows = Counter(
            row
            for stream in readers
            for batch in stream.iterate()
            for row in batch.row_ids.tolist()
        )
        assert len(rows) == 10_001
        assert set(rows.values()) == {1}
