"""JSON whose values are of other types or sizes than expected is one line, never a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.malformed import BAD, DEEP, mutations, refusal

from marin.bench.compare import compare, history, read_results
from marin.engine import read_manifest
from marin.errors import MarinError
from marin.ladder.grid import read_rungs
from marin.ladder.history import read_history
from marin.ladder.plan import plan as plan_rungs
from marin.mixture import Phase, Schedule, Specification, constant_batches, load
from marin.mixture.schedule import load_schedule
from marin.model.export import import_model
from marin.model.safetensors import read as read_tensors
from marin.stream.cursor import Cursor
from marin.train.curriculum import Curriculum, Segment
from marin.train.metrics import last_records, read_metrics
from marin.train.run_directory import RunDirectory
from marin.train.watch import _Band

SPECIFICATION = Specification(
    "s",
    (Phase("a", 4000, {"x": 0.5, "y": 0.5}), Phase("b", 4000, {"x": 1.0, "y": 0.0})),
    {"x": 9000, "y": 9000},
    epoch_cap=2.0,
)
SCHEDULE = Schedule.of(
    SPECIFICATION, constant_batches(64, [(0.0, 16), (0.5, 32)]), simulated_horizon=16_000
)
CURRICULUM = Curriculum.plan((Segment(10, 4, 16, "a"),), 128)
CURSOR = {"plan": "p", "next_row": 8, "step": 4, "batches": [[4, 2]]}
RUNG = {
    "name": "r",
    "active_params": 1e6,
    "tokens": 512.0,
    "train_flops": 1e12,
    "steps": 8,
    "batch_sequences": 4,
    "seq_len": 16,
    "loss": [[0, 2.0], [7, 1.0]],
}
RESULTS = {
    "machine": {},
    "results": [
        {"tool": "t", "version": "1", "metric": "m", "value": 1.0, "unit": "s", "runs": [1.0]}
    ],
}
PLAN = {
    "curriculum": CURRICULUM.to_json(),
    "legs": [{"step": 0, "shards": "s", "fingerprint": "f"}],
    "cells": ["x"],
    "schedule": {},
    "tokenizer": "t",
}


def read_run(path: Path) -> None:
    directory = RunDirectory(path.parent)
    directory.legs(None)  # type: ignore[arg-type]  # not looked at where there is a plan
    directory.planned_curriculum()


def read_bench(path: Path) -> None:
    found = read_results(path)["results"]
    compare(found, found)
    history(path.parent)


READERS: dict[str, tuple[str, Any, Callable[[Path], Any]]] = {
    "manifest": ("manifest.json", {"files": [{"name": "a"}]}, lambda p: read_manifest(p.parent)),
    "specification": ("a.json", SPECIFICATION.to_json(), load),
    "normalized": ("a.json", SPECIFICATION.to_json(), lambda p: load(p, normalize=True)),
    "schedule": ("a.json", SCHEDULE.to_json(), lambda p: load_schedule(p).runs),
    "grid": ("a.json", {"rungs": [RUNG]}, read_rungs),
    "history": ("a.json", [{"step": 1, "loss": 2.0}], read_history),
    "results": ("a.json", RESULTS, read_bench),
    "run": ("plan.json", PLAN, read_run),
    "forecast": ("a.json", [{"tokens": 1, "low": 1.0, "high": 2.0}], _Band.read),
    "config": ("config.json", {"model_type": "hero"}, lambda p: import_model(p.parent, None)),
}


@pytest.mark.parametrize("kind", READERS)
def test_a_file_with_a_value_of_another_kind_is_one_line(tmp_path: Path, kind: str) -> None:
    name, value, read = READERS[kind]
    path = tmp_path / name
    refused = 0
    for text in (*map(json.dumps, mutations(value)), DEEP, "", "\0"):
        path.write_text(text)
        message = refusal(lambda: read(path))
        assert message is None or str(path) in message or kind == "config", text
        refused += message is not None
    assert refused > len(BAD)


def test_a_cursor_of_other_values_is_one_line() -> None:
    for value in (*mutations(CURSOR), DEEP, "{\n"):
        refusal(lambda: Cursor.from_json(value))  # noqa: B023


def test_metrics_that_are_no_objects_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for text in ("5\n", "null\n", "[]\n", '"x"\n', DEEP + "\n", "{\n"):
        path.write_text(text)
        for read in (read_metrics, lambda p: last_records(p, len(text), 9)):  # noqa: B023
            with pytest.raises(MarinError, match=r"metrics\.jsonl"):
                read(path)


def test_the_header_of_tensors_may_hold_anything(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
    for value in mutations(header):
        text = json.dumps(value).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
        refusal(lambda: read_tensors(path))


def test_a_ladder_of_numbers_that_are_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "hero.toml"
    for number in ("nan", "inf", "1" + "0" * 400, "true", "'x'"):
        path.write_text(f"[model]\npreset = 'tiny'\n[ladder]\ntokens_per_parameter = {number}\n")
        with pytest.raises(MarinError, match=r"hero\.toml: ladder\.tokens_per_parameter"):
            plan_rungs(path)
