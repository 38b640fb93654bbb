"""Batches on devices: global arrays, each process and device with its rows."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh
from support.packing import make_schedule, write_store

from marin.packing import plan
from marin.stream import Stream
from marin.stream.devices import to_devices
from marin.stream.grain import RowSource


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    root = tmp_path_factory.mktemp("devices")
    lengths = {"c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5]}
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 16, 8), (0.5, 32, 4)], 1024)
    return plan(write_store(root, lengths), schedule, root)


def test_rows_are_spread_over_the_devices_in_their_order(planned):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "expert"))
    stream = Stream(planned)
    batches = list(to_devices(stream, mesh, ahead=2))
    assert [batch.step for batch in batches] == list(range(len(stream)))
    for batch in batches:
        host = stream.batch(batch.step)
        assert batch.first_row == host.row_ids[0]
        for name in ("tokens", "segment_ids", "positions", "loss_mask", "cells"):
            assert np.array_equal(getattr(batch, name), getattr(host, name))
        rows = [shard.data.shape[0] for shard in batch.tokens.addressable_shards]
        assert rows == [len(host.row_ids) // 4] * 4


def test_axes_that_are_not_named_hold_copies(planned):
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"))
    batch = next(to_devices(Stream(planned), mesh, ["data"], start=3))
    assert batch.step == 3
    assert {shard.data.shape[0] for shard in batch.tokens.addressable_shards} == {4}


def test_a_row_source_has_every_row_at_its_number(planned):
    source = RowSource(planned)
    stream = Stream(planned)
    assert len(source) == stream.batches.rows
    row = 0
    for batch in stream.iterate():
        for at in range(len(batch.row_ids)):
            element = source[row]
            assert np.array_equal(element["tokens"], batch.tokens[at])
            assert np.array_equal(element["loss_mask"], batch.loss_mask[at])
            assert element["cell"] == batch.cells[at]
            row += 1
    assert source.__getstate__() == {"_path": planned}
