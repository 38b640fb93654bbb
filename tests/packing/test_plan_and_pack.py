"""Plans and shards: every token once, in the schedule's order, readable by any Arrow reader."""

import json
import time
from collections import defaultdict

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from support.packing import document_tokens, make_schedule, write_store
from typer.testing import CliRunner

from marin._native import xxh3_bytes
from marin.cli.app import app
from marin.engine import read_manifest, write_manifest
from marin.errors import MarinError
from marin.mixture import Schedule, Stage, tilted
from marin.packing import PlanConfig, ShardConfig, pack, plan
from marin.packing.store import Store


def lengths_of(seed, documents, longest):
    generator = np.random.default_rng(seed)
    return (generator.pareto(1.2, documents) * 8).astype(int).clip(0, longest).tolist()


LENGTHS = {"c00q0": lengths_of(0, 90, 200), "c00q1": lengths_of(1, 40, 60), "c01q0": [5, 2, 3, 1]}


@pytest.fixture
def store(tmp_path):
    return write_store(tmp_path, LENGTHS)


@pytest.fixture
def schedule():
    weights = dict(zip(LENGTHS, (0.6, 0.3, 0.1), strict=True))
    return make_schedule(weights, [(0.0, 32, 8), (0.5, 64, 4)], 4096)


SMALL = ShardConfig(shard_tokens=640, block_tokens=128, documents=True, threads=2)


def documents_of(schedule, cell, count):
    return schedule.order.documents(cell, len(LENGTHS[cell]), 0, count).document


def read_shards(directory):
    manifest = read_manifest(directory)
    names = [file.name for file in manifest.files if "/" not in file.name]
    for name in sorted(names):
        table = pa.ipc.open_file(pa.memory_map(str(directory / name))).read_all()
        yield from table.to_pylist()


@pytest.mark.parametrize("policy", ["best-fit", "concat", "truncate"])
def test_rows_hold_the_documents_of_their_cell_in_the_mixtures_order(
    tmp_path, store, schedule, policy
):
    planned = plan(store, schedule, tmp_path, PlanConfig(policy=policy, window=16))
    shards = pack(planned, tmp_path, SMALL)
    rows = list(read_shards(shards))
    stages, cells, _ = schedule.order.rows(0, schedule.rows)
    assert len(rows) == len(stages) == 96
    taken = defaultdict(int)
    parts = defaultdict(list)
    for row, stage, cell in zip(rows, stages, cells, strict=True):
        assert row["cell"] == cell
        assert len(row["tokens"]) == schedule.row_stages[stage].seq_len
        begin = 0
        for length, name in zip(row["segments"], row["documents"], strict=True):
            document, _, start = name.partition("+")
            start = int(start or 0)
            number = int(document.split("-")[1])
            expected = document_tokens(cell, number, start + length)[start:]
            assert row["tokens"][begin : begin + length] == expected.tolist()
            parts[cell, number].append((start, length))
            begin += length
        assert 0 < begin <= len(row["tokens"])
        assert not any(row["tokens"][begin:])
        taken[cell] += begin
    summary = read_manifest(shards).summary
    assert summary["tokens"] == sum(taken.values())
    assert summary["padding"] == schedule.tokens - summary["tokens"]
    for (cell, number), found in parts.items():
        whole = LENGTHS[schedule.cells[cell]][number]
        if policy == "best-fit" and whole <= 32:
            assert set(found) == {(0, whole)}


def test_every_token_in_is_a_token_out_or_in_the_report(tmp_path, store, schedule):
    for policy in ("best-fit", "concat", "truncate"):
        planned = plan(store, schedule, tmp_path, PlanConfig(policy=policy))
        summary = read_manifest(planned).summary
        tokens_in = 0
        for cell in schedule.cells:
            stages = json.loads((planned / "cells" / f"{cell}.json").read_text())
            used = sum(stage["documents"] for stage in stages)
            order = documents_of(schedule, cell, used)
            tokens_in += sum(LENGTHS[cell][document] for document in order)
        accounted = summary["tokens"] + summary["truncated_tokens"] + summary["unused_tokens"]
        assert tokens_in == accounted


def test_nothing_is_skipped_or_repeated_when_the_row_length_changes(tmp_path, store, schedule):
    planned = plan(store, schedule, tmp_path, PlanConfig(window=8))
    for cell in schedule.cells:
        stages = json.loads((planned / "cells" / f"{cell}.json").read_text())
        order = documents_of(schedule, cell, sum(stage["documents"] for stage in stages))
        given = defaultdict(int)
        for document in order.tolist():
            given[document] += LENGTHS[cell][document]
        used = defaultdict(int)
        for stage in range(2):
            path = planned / f"rows-{stage:02d}" / f"{cell}.arrow"
            if path.is_file():
                pieces = pl.read_ipc(path)["pieces"].explode()
                for piece in pieces.to_list():
                    used[piece["document"]] += piece["length"]
        assert all(used[document] <= given[document] for document in used)
        waiting = stages[-1]["waiting_tokens"]
        assert sum(given.values()) == sum(used.values()) + waiting


def test_threads_and_a_killed_run_do_not_change_a_byte(tmp_path, store, schedule):
    planned = plan(store, schedule, tmp_path / "a")
    one = pack(planned, tmp_path / "a", ShardConfig(640, 128, threads=1))
    again = plan(store, schedule, tmp_path / "b")
    two = pack(again, tmp_path / "b", ShardConfig(640, 128, threads=2))
    assert read_manifest(one).files == read_manifest(two).files
    assert read_manifest(planned).fingerprint == read_manifest(again).fingerprint
    (two / "manifest.json").unlink()
    for name in ("part-00001.arrow", "index/part-00002.arrow"):
        (two / name).unlink()
    assert pack(again, tmp_path / "b", ShardConfig(640, 128)) == two
    assert read_manifest(one).files == read_manifest(two).files


def test_shards_are_plain_arrow_files(tmp_path, store, schedule):
    shards = pack(plan(store, schedule, tmp_path), tmp_path, SMALL)
    frame = pl.scan_ipc(shards / "part-0000*.arrow").select("cell", "segments").collect()
    assert frame.height >= 10 * 4
    schema = pa.ipc.open_file(shards / "part-00000.arrow").schema
    assert schema.field("tokens").type == pa.list_(pa.int32(), 32)
    assert json.loads(schema.metadata[b"cells"]) == list(schedule.cells)


def test_a_cell_without_tokens_is_named(tmp_path, schedule):
    store = write_store(tmp_path, {**LENGTHS, "c01q0": [0, 0, 0, 0]})
    with pytest.raises(MarinError, match=r"cell c01q0 has no tokens, the schedule wants \d+ rows"):
        plan(store, schedule, tmp_path)


def test_an_impossible_minimum_fill_is_named(tmp_path):
    store = write_store(tmp_path, {"c00q0": [20] * 40})
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 32, 4)], 256)
    with pytest.raises(MarinError, match=r"min_fill 0\.9; lower it"):
        plan(store, schedule, tmp_path, PlanConfig(min_fill=0.9, window=32))


def test_a_mixture_that_is_bound_to_another_store_is_refused_with_what_differs(tmp_path, store):
    tokens = {cell: sum(lengths) for cell, lengths in LENGTHS.items()}
    phases = [("main", 4096, 1.0)]

    def bound(fingerprint, tokens):
        mixture = tilted("bound", tokens, phases, epoch_cap=9.0, store=fingerprint)
        return Schedule.of(mixture, [Stage(0.0, 32, 8)])

    fingerprint = read_manifest(store).fingerprint
    assert plan(store, bound(fingerprint, tokens), tmp_path).is_dir()
    with pytest.raises(MarinError, match=r"bound to store other, found .*; marin mix rebase"):
        plan(store, bound("other", tokens), tmp_path)
    with pytest.raises(MarinError, match=r"changed: c01q0 12 -> 11 tokens; marin mix rebase"):
        plan(store, bound("other", {**tokens, "c01q0": 12}), tmp_path)


def test_another_store_is_refused(tmp_path, store, schedule):
    planned = plan(store, schedule, tmp_path)
    other = write_store(tmp_path / "other", {cell: rows[::-1] for cell, rows in LENGTHS.items()})
    with pytest.raises(MarinError, match="was planned for"):
        pack(planned, tmp_path, store=other)


def test_a_store_takes_no_plan_and_a_file_no_shards(tmp_path, store, schedule):
    path = tmp_path / "schedule.json"
    path.write_text(json.dumps(schedule.to_json()))
    held = sorted(store.rglob("*"))
    for out, message in (
        (store, "a finished store"),
        (store / "c00q0", "a finished store"),
        (path, "schedule.json: not a folder"),
    ):
        command = ["pack", str(store), "--schedule", str(path), "--out", str(out)]
        with pytest.raises(MarinError, match=message):
            CliRunner().invoke(app, command, catch_exceptions=False)
    assert sorted(store.rglob("*")) == held
    assert path.read_text() == json.dumps(schedule.to_json())


@pytest.mark.parametrize("vouched", ["files", "lengths"])
def test_no_plan_is_made_from_a_damaged_store(tmp_path, vouched):
    counts = [5, 3, 20, 8] * 5
    store = write_store(tmp_path, {"a": counts}, files=1, rows_per_batch=100)
    (file,) = store.glob("a/*.arrow")
    if vouched == "lengths":
        manifest = read_manifest(store)
        checksums = {"a/part-00000.arrow": xxh3_bytes(np.asarray(counts, "<i8").tobytes())}
        summary = {**manifest.summary, "lengths": checksums}
        rows = {"a/part-00000.arrow": len(counts)}
        write_manifest(store, "store", parameters={}, inputs={}, rows=rows, summary=summary)
    schedule = make_schedule({"a": 1.0}, [(0, 32, 2)], 128)
    good = file.read_bytes()
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype("<i8").tobytes()
    at = good.index(offsets)
    for position in range(at + 8, at + len(offsets) - 8):
        file.write_bytes(bytes([*good[:position], good[position] ^ 2, *good[position + 1 :]]))
        with pytest.raises(MarinError, match=r"part-00000\.arrow: .*build the store again"):
            plan(store, schedule, tmp_path)
    file.write_bytes(good)
    planned = plan(store, schedule, tmp_path)
    assert read_manifest(planned).summary["documents"]


def test_an_error_in_one_cell_ends_the_planning_of_the_others(tmp_path, monkeypatch):
    store = write_store(tmp_path, dict.fromkeys("abcdefgh", [5] * 20))
    schedule = make_schedule(dict.fromkeys("abcdefgh", 0.125), [(0, 8, 8)], 640)
    begun = []

    def fail(store, schedule, cell, *rest):
        begun.append(cell)
        raise ValueError("made up")

    monkeypatch.setitem(plan.__globals__, "plan_cell", fail)
    monkeypatch.setitem(plan.__globals__, "cpu_count", lambda: 1)
    monkeypatch.setattr(Store, "check_lengths", lambda store, cell: time.sleep(0.05))
    with pytest.raises(MarinError, match="cell a cannot be planned: made up"):
        plan(store, schedule, tmp_path)
    assert len(begun) < 4


@pytest.mark.parametrize("name", ["../x", "..", "a/b", "a\nb"])
def test_a_store_whose_cells_are_no_folders_is_refused(tmp_path, name):
    store = write_store(tmp_path, {"a": [5] * 20})
    manifest = read_manifest(store)
    summary = {**manifest.summary, "cells": {name: {"documents": 20, "tokens": 100}}}
    write_manifest(store, "store", parameters={}, inputs={}, rows={}, summary=summary)
    with pytest.raises(MarinError, match=r"cell .* expected 1 to 200 bytes of printable text"):
        Store(store).cells  # noqa: B018
