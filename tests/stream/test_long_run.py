"""A run of more than four billion rows: any row is found, read and resumed from as row 0 is."""

import pytest

from marin.bench.stream.long_run import ROW_4_BILLION, build_long_run
from marin.stream import Cursor, Stream

BATCH = 64


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    return build_long_run(tmp_path_factory.mktemp("long") / "shards", 16, BATCH, 1 << 24)


def test_a_row_past_four_billion_is_the_one_that_was_asked_for(long_run):
    stream = Stream(long_run)
    block = (1 << 17) // 16
    for first in (0, ROW_4_BILLION, ROW_4_BILLION + 3 * block):
        batch = stream.batch(first // BATCH)
        assert batch.row_ids.tolist() == list(range(first, first + BATCH))
        assert batch.tokens[0, 0] == first % 2**31
        assert not batch.tokens[1:].any()
        assert (batch.segment_ids == 1).all()


def test_a_cursor_past_four_billion_rows_goes_on_there(long_run):
    step = ROW_4_BILLION // BATCH
    cursor = Stream(long_run).cursor(step)
    assert cursor.next_row == ROW_4_BILLION
    resumed = Stream(long_run, cursor=Cursor.from_json(cursor.to_json()), reader=(1, 2))
    batch = next(iter(resumed.iterate(prefetch=1)))
    assert batch.step == step
    assert batch.row_ids[0] == ROW_4_BILLION + BATCH // 2
