"""Shards behind a URL: the same batches, few bytes, slow or not at all but never wrong."""

import gc
import subprocess
import sys

import numpy as np
import pyarrow.fs as pafs
import pytest
from support.packing import make_schedule, write_store

from marin.engine import read_manifest
from marin.errors import MarinError
from marin.packing import ShardConfig, pack, plan
from marin.stream import Stream
from marin.stream.remote import Mirror
from marin.stream.sources import ShardRows

LENGTHS = {"c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5], "c00q1": [8] * 5 + [2] * 9}


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    root = tmp_path_factory.mktemp("remote")
    schedule = make_schedule(dict.fromkeys(LENGTHS, 0.5), [(0.0, 16, 8), (0.5, 32, 4)], 2048)
    planned = plan(write_store(root, LENGTHS), schedule, root)
    return pack(planned, root, ShardConfig(shard_tokens=256, block_tokens=32))


class Flaky:
    """A file system that fails a number of times before each success, and counts bytes."""

    def __init__(self, failures):
        self.failures = failures
        self.left = failures
        self.bytes = 0

    def open_input_file(self, path):
        if self.left:
            self.left -= 1
            raise OSError("connection reset")
        self.left = self.failures
        file = pafs.LocalFileSystem().open_input_file(path)
        self.bytes += 0 if path.endswith(("json", "/index")) else file.size()
        return file


def test_a_url_gives_the_same_batches(shards):
    remote = Stream(f"file://{shards}")
    for batch in Stream(shards).iterate():
        assert np.array_equal(batch.tokens, remote.batch(batch.step).tokens)


def test_a_batch_fetches_its_own_blocks_and_the_cache_stays_small(tmp_path, shards):
    mirror = Mirror(str(shards), cache=tmp_path, filesystem=Flaky(0), limit=3000)
    rows = ShardRows(mirror.path, read_manifest(mirror.path), mirror)
    stream = Stream(shards)
    stream._source = rows
    stream.batch(3)
    fetched = {path.name: path for path in mirror.path.glob("*.arrow")}
    assert len(fetched) == 1
    for batch in Stream(shards).iterate():
        assert np.array_equal(batch.tokens, stream.batch(batch.step).tokens)
    assert len(list(mirror.path.glob("*.arrow"))) <= 2
    copies = mirror.path
    del stream, rows, mirror
    gc.collect()
    assert not copies.exists()


def test_a_store_that_fails_now_and_then_is_asked_again(tmp_path, shards):
    pauses = []
    mirror = Mirror(str(shards), cache=tmp_path, filesystem=Flaky(3), sleep=pauses.append)
    stream = Stream(shards)
    stream._source = ShardRows(mirror.path, read_manifest(mirror.path), mirror)
    assert np.array_equal(stream.batch(5).tokens, Stream(shards).batch(5).tokens)
    assert pauses[:3] == [0.2, 0.4, 0.8]


def test_a_store_that_stays_away_is_named(tmp_path, shards):
    with pytest.raises(MarinError, match=r"manifest\.json: not readable after 5 attempts"):
        Mirror(str(shards), cache=tmp_path, filesystem=Flaky(9), sleep=lambda seconds: None)
    with pytest.raises(MarinError, match="not there"):
        Stream(f"file://{tmp_path}/nowhere")


def test_the_cache_holds_no_more_than_its_limit_indices_included(tmp_path, shards):
    remote = Stream(f"file://{shards}", cache=tmp_path / "cache", cache_bytes=6000)
    (copies,) = (tmp_path / "cache").iterdir()
    names = set()
    for batch in Stream(shards).iterate():
        assert np.array_equal(batch.tokens, remote.batch(batch.step).tokens)
        held = {path.name: path for path in copies.glob("part-*")}
        indices = list(copies.glob("index/*"))
        assert {path.name for path in indices} == held.keys()
        small = sum(path.stat().st_size for path in indices)
        names |= held.keys()
        assert len(held) == 1 or small <= 6000
    assert len(names) > 2
    remote.batch(0)


def test_copies_of_a_killed_process_are_swept_and_those_of_a_live_one_stay(tmp_path, shards):
    code = (
        f"from marin.stream import Stream; import os; from pathlib import Path\n"
        f"s = Stream('file://{shards}', cache=Path('{tmp_path}')); s.batch(0); print(flush=True)\n"
        "input()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    (copies,) = tmp_path.iterdir()
    other = Mirror(str(shards), cache=tmp_path, filesystem=Flaky(0))
    assert copies.is_dir()
    child.kill()
    child.wait()
    Mirror(str(shards), cache=tmp_path, filesystem=Flaky(0))
    assert not copies.exists()
    assert other.path.is_dir()
