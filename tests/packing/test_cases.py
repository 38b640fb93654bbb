"""The inputs of tests/cases/packing: small, and once wrong in some packer."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.packing import make_schedule, write_store

from marin._native import Packer, derive_rows
from marin.packing import PlanConfig, ShardConfig, pack, plan
from marin.stream import Stream

CASES = sorted((Path(__file__).parents[1] / "cases" / "packing").glob("*.json"))
NO_LIMIT = 2**32 - 1


def read_case(path):
    case = json.loads(path.read_text())
    if isinstance(case["lengths"], dict):
        case["lengths"] = [case["lengths"]["each"]] * case["lengths"]["documents"]
        case["packed"] = [case["packed"]["each"]] * case["packed"]["rows"]
    return case


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_rows_and_losses_are_those_of_the_case(path):
    case = read_case(path)
    row_length = case["row_length"]
    packer = Packer("best-fit", case.get("max_segments", NO_LIMIT), 0.0, row_length)
    lengths = np.array(case["lengths"])
    packer.push(np.arange(len(lengths)), lengths, 2**62)
    packed: list[list[int]] = []
    losses = 0
    # Rows that wait for documents to fill them come when they are asked for again.
    while len(packed) < case["rows"]:
        offsets, _, _, rows = packer.pack(case["rows"] - len(packed))
        packed += [rows[a:b].tolist() for a, b in pairwise(offsets)]
        tokens = (len(offsets) - 1) * row_length
        ids, positions = np.empty((2, tokens), np.int32)
        mask = np.empty(tokens, np.uint8)
        derive_rows(offsets, rows, row_length, ids, positions, mask)
        losses += int(mask.sum())
    assert sorted(packed) == sorted(case["packed"])
    assert losses == case["loss_positions"]
    assert packer.counts["cut_documents"] == case["cut_documents"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_no_row_is_padding_alone_and_the_limits_hold_all_the_way(tmp_path, path):
    case = read_case(path)
    store = write_store(tmp_path, {"c00q0": case["lengths"]})
    schedule = make_schedule(
        {"c00q0": 1.0}, [(0.0, case["row_length"], 1)], case["rows"] * case["row_length"]
    )
    config = PlanConfig(max_segments=case.get("max_segments"))
    planned = plan(store, schedule, tmp_path, config)
    virtual = Stream(planned)
    stream = Stream(pack(planned, tmp_path, ShardConfig(block_tokens=case["row_length"] * 2)))
    assert len(stream) == case["rows"]
    for batch in stream.iterate():
        segments = batch.segment_ids[0]
        assert segments[0] == 1
        assert segments.max() <= case.get("max_segments", NO_LIMIT)
        assert batch.loss_mask.sum() == (segments > 0).sum() - segments.max()
        assert np.array_equal(batch.tokens, virtual.batch(batch.step).tokens)
