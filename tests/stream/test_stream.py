"""Streams: the same rows for any reader count, start and source."""

import json
from contextlib import suppress

import numpy as np
import pytest
from support.packing import make_schedule, write_store

from marin.errors import MarinError
from marin.packing import ShardConfig, pack, plan
from marin.stream import Cursor, Stream

LENGTHS = {"c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5], "c00q1": [8] * 5 + [2] * 9}
STAGES = [(0.0, 16, 6), (0.15, 16, 12), (0.4, 32, 6)]
ARRAYS = ("row_ids", "tokens", "segment_ids", "positions", "loss_mask", "cells")


@pytest.fixture
def planned(tmp_path):
    schedule = make_schedule(dict.fromkeys(LENGTHS, 0.5), STAGES, 3072)
    return plan(write_store(tmp_path, LENGTHS), schedule, tmp_path)


@pytest.fixture
def shards(tmp_path, planned):
    return pack(planned, tmp_path, ShardConfig(shard_tokens=160, block_tokens=64))


def same(one, other):
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ARRAYS)


def test_a_batch_is_what_the_contract_says(shards):
    stream = Stream(shards)
    assert len(stream) == 19
    rows = 0
    for step, batch in enumerate(stream.iterate()):
        assert batch.step == step
        assert batch.row_ids.tolist() == list(range(rows, rows + len(batch.row_ids)))
        rows += len(batch.row_ids)
        assert batch.seq_len == (16 if step < 9 else 32)
        ids = batch.segment_ids
        following = np.pad(ids[:, 1:], ((0, 0), (0, 1)))
        assert np.array_equal(batch.loss_mask, (ids != 0) & (ids == following))
        assert batch.tokens[ids == 0].sum() == 0
        assert (ids[:, 0] == 1).all()
        restarts = np.diff(ids, axis=1, prepend=0) != 0
        assert (batch.positions[restarts] == 0).all()
        inside = ~restarts & (ids != 0)
        assert (batch.positions[inside] == np.roll(batch.positions, 1, axis=1)[inside] + 1).all()
    assert rows == stream.batches.rows == 30 + 48 + 60


def test_shards_and_virtual_rows_are_the_same(planned, shards):
    virtual = Stream(planned)
    for batch in Stream(shards).iterate(prefetch=0):
        assert same(batch, virtual.batch(batch.step))


@pytest.mark.parametrize("readers", [2, 7])
def test_readers_together_see_each_row_once(shards, readers):
    streams = [Stream(shards, reader=(index, readers)) for index in range(readers)]
    for whole in Stream(shards).iterate():
        parts = [stream.batch(whole.step) for stream in streams]
        for name in ARRAYS:
            joined = np.concatenate([getattr(part, name) for part in parts])
            assert np.array_equal(joined, getattr(whole, name))


def test_a_run_stopped_at_any_batch_goes_on_with_the_same_rows(shards):
    undisturbed = [batch.row_ids.tolist() for batch in Stream(shards).iterate()]
    for stop in range(len(undisturbed) + 1):
        cursor = Cursor.from_json(json.dumps(Stream(shards).cursor(stop).to_json()))
        resumed = Stream(shards, cursor=cursor)
        rest = [batch.row_ids.tolist() for batch in resumed.iterate()]
        assert rest == undisturbed[stop:]
        assert resumed.cursor(len(resumed)) == Stream(shards).cursor(len(undisturbed))


def test_a_changed_batch_size_neither_skips_nor_repeats_a_row(shards):
    stream = Stream(shards, cursor=Stream(shards).cursor(7), batch_size=3)
    cursor = stream.cursor(20)
    assert cursor.batches == ((5, 6), (2, 12), (13, 3))
    again = Stream(shards, cursor=cursor, batch_size=15)
    rows = [row for step in range(len(again)) for row in again.batch(step).row_ids.tolist()]
    assert rows == list(range(138))


def test_a_batch_size_that_would_mix_row_lengths_is_refused(shards):
    with pytest.raises(MarinError, match=r"batch size 9 at row 72: 6 rows of 16 tokens are left"):
        Stream(shards, batch_size=9)


def test_a_cursor_of_another_plan_or_that_contradicts_itself_is_refused(shards):
    with pytest.raises(MarinError, match="cursor of plan another at row 6"):
        Stream(shards, cursor=Cursor("another", 6, 1, ((1, 6),)))
    with pytest.raises(MarinError, match="its batches are 1 steps and 6 rows"):
        Cursor("any", 7, 1, ((1, 6),))
    with pytest.raises(MarinError, match="not a cursor"):
        Cursor.from_json('{"plan": "x"}')


def test_a_batch_that_is_kept_is_never_overwritten(shards):
    stream = Stream(shards)
    kept = [(batch, batch.tokens.copy()) for batch in stream.iterate()]
    list(stream.iterate())
    assert all(np.array_equal(batch.tokens, copy) for batch, copy in kept)


def test_memory_of_dropped_batches_is_used_again(shards):
    stream = Stream(shards)
    addresses = {batch.tokens.ctypes.data for batch in stream.iterate(prefetch=0)}
    assert len(addresses) <= 6


def test_every_flipped_byte_is_found_and_a_row_is_named(tmp_path, shards):
    path = shards / "part-00001.arrow"
    good = path.read_bytes()
    generator = np.random.default_rng(0)
    for position in generator.choice(len(good), 60, replace=False).tolist():
        path.write_bytes(bytes(b ^ (i == position) for i, b in enumerate(good)))
        with pytest.raises(MarinError, match=r"part-00001\.arrow: .*marin pack --verify"):
            list(Stream(shards).iterate())
    path.write_bytes(good[:-1])
    with pytest.raises(MarinError, match=r"part-00001\.arrow: \d+ bytes, expected"):
        list(Stream(shards).iterate())


def flipped(path, positions):
    """A generator that leaves `path` with one byte changed at a time."""
    good = path.read_bytes()
    for position in positions:
        path.write_bytes(good[:position] + bytes([good[position] ^ 129]) + good[position + 1 :])
        yield position
    path.write_bytes(good)


def test_every_flipped_byte_of_a_plan_is_found(planned):
    files = [*sorted(planned.glob("rows-*/*.arrow")), planned / "schedule.json"]
    for path in files:
        for _ in flipped(path, range(0, path.stat().st_size, 13)):
            with pytest.raises(MarinError, match=rf"{path.name}: .*plan again"):
                list(Stream(planned).iterate(prefetch=0))


def test_a_flipped_byte_of_the_store_is_no_crash(tmp_path, planned):
    for path in sorted((tmp_path / "store").glob("*/part-00000.arrow")):
        for _ in flipped(path, range(0, path.stat().st_size, 5)):
            with suppress(MarinError):
                Stream(planned).batch(0)
