"""A revised schedule keeps what was trained on, and gives no document away twice."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from support.packing import make_schedule, write_store
from typer.testing import CliRunner

from marin.cli.app import app
from marin.engine import read_manifest
from marin.errors import MarinError
from marin.mixture import Phase, Schedule, Specification, Stage
from marin.packing import PlanConfig, ShardConfig, pack, plan, planned_as
from marin.packing.history import KeptRows
from marin.stream import Stream

LENGTHS = {
    "c00q0": [3, 9, 14, 40, 1, 1, 6, 16, 5, 7, 70, 2] * 9,
    "c00q1": [8] * 35 + [2] * 49,
}


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path, LENGTHS)


@pytest.fixture
def schedule():
    return make_schedule({"c00q0": 0.7, "c00q1": 0.3}, [(0.0, 16, 8), (0.5, 32, 4)], 8192)


def given_tokens(planned, cell):
    """How often each (document, token) stands in a row."""
    given = Counter()
    for path in sorted(planned.glob(f"rows-*/{cell}.arrow")):
        for row in pa.ipc.open_file(path).read_all()["pieces"].to_pylist():
            for piece in row:
                for token in range(piece["start"], piece["start"] + piece["length"]):
                    given[piece["document"], token] += 1
    return given


@pytest.mark.parametrize("policy", ["best-fit", "concat"])
@pytest.mark.parametrize("step", [1, 5, 32, 40])
def test_a_shorter_horizon_keeps_the_rows_before_it_and_repeats_nothing(
    tmp_path, store, schedule, step, policy
):
    config = PlanConfig(policy=policy, window=24)
    first = plan(store, schedule, tmp_path, config)
    shorter = schedule.revised(step, horizon=7168)
    second = plan(store, shorter, tmp_path, config, after=first)
    kept = shorter.row_at(step)
    old, new = Stream(first), Stream(second)
    for stage in shorter.row_stages:
        end = min(kept, stage.first_row + stage.rows)
        if end > stage.first_row:
            count = end - stage.first_row
            one, two = (stream.rows(stage.first_row, count) for stream in (old, new))
            assert np.array_equal(one.tokens, two.tokens)
            assert np.array_equal(one.segment_ids, two.segment_ids)
    for cell, lengths in LENGTHS.items():
        stages = json.loads((second / "cells" / f"{cell}.json").read_text())
        count = sum(stage["documents"] for stage in stages)
        order = shorter.order.documents(cell, len(lengths), 0, count).document.tolist()
        times = Counter(order)
        given = given_tokens(second, cell)
        assert all(given[place] <= times[place[0]] for place in given)
        taken = sum(lengths[document] for document in order)
        assert taken == sum(given.values()) + stages[-1]["waiting_tokens"]
    # A cursor of the first run goes on in the second one.
    resumed = Stream(second, cursor=old.cursor(step))
    rows = [row for batch in resumed.iterate() for row in batch.row_ids.tolist()]
    assert rows == list(range(kept, shorter.rows))
    if step < 40:
        with pytest.raises(MarinError, match=r"keeps \d+ rows of that plan"):
            Stream(second, cursor=old.cursor(step + 1))
    third = plan(store, shorter.revised(44, horizon=7680), tmp_path, config, after=second)
    assert [plan[1] for plan in read_manifest(third).summary["history"]][1] == kept
    shards = pack(third, tmp_path, ShardConfig(block_tokens=64))
    assert Stream(shards, cursor=old.cursor(step)).start == step


def test_a_shortened_run_of_simulated_epochs_keeps_its_rows(tmp_path, store, schedule):
    simulated = replace(schedule, simulated_horizon=4 * schedule.horizon)
    first = plan(store, simulated, tmp_path)
    shorter = simulated.revised(20, horizon=6144)
    second = plan(store, shorter, tmp_path, after=first)
    kept = shorter.row_at(20)
    assert kept == read_manifest(second).summary["history"][0][1] > 0
    one, two = (Stream(planned).rows(0, kept) for planned in (first, second))
    for name in ("tokens", "segment_ids", "positions", "loss_mask"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    with pytest.raises(MarinError, match="not a revision of this plan's"):
        plan(store, schedule, tmp_path, after=first)


def test_a_schedule_of_another_run_is_refused(tmp_path, store, schedule):
    first = plan(store, schedule, tmp_path)
    other = make_schedule({"c00q0": 0.6, "c00q1": 0.4}, [(0.0, 16, 8)], 4096)
    with pytest.raises(MarinError, match="not a revision of this plan's"):
        plan(store, other, tmp_path, after=first)


def test_a_higher_cap_keeps_the_rows_of_cells_that_were_dropped(tmp_path):
    store = write_store(tmp_path, {"a": [5] * 20, "b": [5] * 2000})

    def capped(cap):
        phase = Phase("main", 1600, {"a": 0.5, "b": 0.5})
        return Specification("capped", (phase,), {"a": 100, "b": 10_000}, epoch_cap=cap)

    schedule = Schedule.of(capped(1.0), [Stage(0, 8, 2)], exhaustion="drop-and-renormalize")
    first = plan(store, schedule, tmp_path)
    revised = schedule.revised(40, specification=capped(4.0))
    second = plan(store, revised, tmp_path, after=first)
    one, two = (Stream(planned).rows(0, 80).tokens for planned in (first, second))
    assert np.array_equal(one, two)
    kept = KeptRows(revised, first, store, "best-fit")
    kept._kept += 1000
    with pytest.raises(MarinError, match=r"cell a has .* rows fewer than this schedule keeps"):
        kept.pieces(0, "a")


def test_the_command_goes_on_as_the_earlier_plan_and_with_no_other_policy(
    tmp_path, store, schedule
):
    config = PlanConfig(policy="concat", max_segments=9, window=24)
    first = plan(store, schedule, tmp_path, config)
    file = tmp_path / "revised.json"
    file.write_text(json.dumps(schedule.revised(20, horizon=7168).to_json()))
    command = ["pack", str(store), "--schedule", str(file), "--json", "--after"]
    shards = pack(first, tmp_path)
    for number, after in enumerate((first, shards)):
        out = ["--out", str(tmp_path / str(number))]
        done = CliRunner().invoke(app, [*command, str(after), "--max-segments", "8", *out])
        manifest = Path(json.loads(done.stdout)["manifest"])
        assert planned_as(manifest.parent) == replace(config, max_segments=8)
    failed = CliRunner().invoke(app, [*command, str(first), "--policy", "truncate"])
    with pytest.raises(MarinError, match=r"planned with policy concat, .*; keep concat"):
        raise failed.exception


@pytest.mark.parametrize("counts", [[1, 2, 1], [1], [3, 1, 1, 2, 1]])
def test_a_small_window_goes_on_after_rows_of_many_epochs(tmp_path, counts):
    store = write_store(tmp_path, {"a": counts}, files=1)
    schedule = make_schedule({"a": 1.0}, [(0.0, 32, 2)], 4096)
    first = plan(store, schedule, tmp_path)
    revised = schedule.revised(20, horizon=3072)
    second = plan(store, revised, tmp_path, PlanConfig(window=1), after=first)
    one, two = (Stream(planned).rows(0, 40).tokens for planned in (first, second))
    assert np.array_equal(one, two)
