"""More than 2^31 tokens in one cell and in one run, on a store that is mostly holes."""

import numpy as np
import pytest
from support.packing import make_schedule, write_sparse_store

from marin.engine import read_manifest
from marin.packing import PlannedRows, ShardConfig, plan
from marin.packing.shard import ShardPlaces, open_shard, read_index, write_shard
from marin.packing.store import Store
from marin.stream import Stream

DOCUMENT = 1 << 20
DOCUMENTS = 2_100
ROW = 1 << 16
ROWS = 33_000


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    root = tmp_path_factory.mktemp("large")
    lengths = np.full(DOCUMENTS, DOCUMENT)
    store = write_sparse_store(root, {"c00q0": lengths})
    mark_documents(store)
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, ROW, 8)], ROWS * ROW)
    return plan(store, schedule, root)


def mark_documents(store):
    """Writes a number that names the document and the row at the start of every 16 rows' part."""
    opened = Store(store)
    (path,) = opened.files("c00q0")
    chunks = opened.chunks("c00q0")
    with path.open("r+b") as file:
        document = 0
        for _, position, tokens in chunks:
            for local in range(len(tokens)):
                for part in (0, DOCUMENT // ROW - 1):
                    file.seek(position + 4 * (local * DOCUMENT + part * ROW))
                    file.write(np.uint32(document * 16 + part).tobytes())
                document += 1


def check(planned, row, tokens):
    source = PlannedRows(planned)
    place = source.schedule.order.rows(row, 1)
    _, (document,), (start,), (length,) = source.plan_rows(0, 0).pieces(place.position)
    assert length == ROW
    part = start // ROW
    marked = part in (0, 15)
    assert tokens[0] == (document * 16 + part if marked else 0)
    assert not tokens[1:].any()
    return marked


def test_rows_beyond_2_to_the_31_tokens_are_right_from_the_store(planned):
    stream = Stream(planned)
    assert stream.batches.rows * ROW > 2**31
    rows = range(ROWS - 64, ROWS)
    assert sum(check(planned, row, stream.rows(row, 1).tokens[0]) for row in rows)
    assert read_manifest(planned).summary["tokens"] == ROWS * ROW


def test_the_last_shard_of_a_set_beyond_2_to_the_31_tokens_is_right(tmp_path, planned):
    place = ShardPlaces([(ROWS, ROW)], ShardConfig(shard_tokens=64 * ROW)).of(ROWS - 1)
    assert place.first_row * ROW > 2**31
    (tmp_path / "index").mkdir()
    write_shard(tmp_path, place, PlannedRows(planned), False)
    shard = open_shard(tmp_path, place, read_index(tmp_path, place))
    tokens, ids, positions = np.empty((3, ROW), np.int32)
    mask, cells = np.empty(ROW, np.uint8), np.empty(1, np.uint16)
    for row in range(place.rows):
        shard.read(row, tokens, ids, positions, mask, cells)
        check(planned, place.first_row + row, tokens)
