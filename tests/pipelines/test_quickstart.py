"""The whole pipeline on a few hundred real files: what comes out, and what a second run reuses."""

import json
import math
import shutil
import subprocess
import sys
import sysconfig
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from marin.engine import write_manifest
from marin.errors import MarinError
from marin.mixture import Schedule
from marin.pipelines.quickstart import QuickstartConfig, make_schedule, run

FILES = 260


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of the standard library, one of them twice and one of them nearly twice."""
    folder = tmp_path_factory.mktemp("documents")
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:FILES]
    for path in sources:
        shutil.copy(path, folder / path.name)
    text = sources[5].read_text()
    (folder / "copy.py").write_text(text)
    (folder / "near.py").write_text(text + "\n# one more line at the end of the file\n")
    return folder


def quickstart(documents: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marin.cli", "quickstart", str(documents), "--out", str(out)]
    return subprocess.run([*command, *options], capture_output=True, text=True)


@pytest.fixture(scope="module")
def answer(documents: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("run") / "out"
    done = quickstart(documents, out, "--tokens", "80000", "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def metrics(answer: dict[str, Any]) -> list[dict[str, Any]]:
    lines = (Path(answer["run"]) / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(400)
def test_every_step_is_logged_and_both_switches_show(answer: dict[str, Any]) -> None:
    records = metrics(answer)
    assert [record["step"] for record in records] == list(range(answer["steps"]))
    assert all(math.isfinite(record["loss"]) for record in records)
    assert [record["seq_len"] for record in records] == sorted(r["seq_len"] for r in records)
    assert {record["seq_len"] for record in records} == {512, 1024}
    assert list(dict.fromkeys(record["phase"] for record in records)) == ["main", "anneal"]
    switch = next(r["tokens"] for r in records if r["phase"] == "anneal")
    assert abs(switch / answer["tokens"] - 0.8) < 0.1
    assert answer["final_loss"] < records[0]["loss"]


def test_the_order_and_count_of_data_are_those_of_the_plan(answer: dict[str, Any]) -> None:
    """Across the switch of row length and that of the mixture, to the last row of each cell."""
    records = metrics(answer)
    plan = json.loads((Path(answer["run"]) / "plan.json").read_text())
    schedule = Schedule.from_json(plan["schedule"])
    assert records[0]["first_row"] == 0
    assert all(one["next_row"] == other["first_row"] for one, other in pairwise(records))
    assert records[-1]["next_row"] == schedule.rows
    for record in records:
        planned_run = schedule.run_at(record["step"])
        assert record["seq_len"] == planned_run.seq_len
        assert record["phase"] == planned_run.phase
    counted = [record for record in records if "cells" in record]
    assert {record["phase"] for record in counted} == {"main", "anneal"}
    assert {record["seq_len"] for record in counted} == {512, 1024}
    for record in counted:
        planned = np.zeros(len(schedule.cells), np.int64)
        for stage in schedule.row_stages:
            first, end = (
                min(row, record["next_row"])
                for row in (stage.first_row, stage.first_row + stage.rows)
            )
            planned += (schedule.order.counts(end) - schedule.order.counts(first)) * stage.seq_len
        assert record["cells"] == dict(zip(schedule.cells, planned.tolist(), strict=True))
    assert sum(records[-1]["cells"].values()) == records[-1]["tokens"]


def test_duplicates_are_removed_and_their_kept_twins_stay(
    answer: dict[str, Any], documents: Path
) -> None:
    stages = Path(answer["out"]) / "stages"
    table = pl.read_parquet(stages / "documents-*" / "part-*.parquet").join(
        pl.read_parquet(stages / "dedup-*" / "part-*.parquet"), on="id"
    )
    names = table.with_columns(pl.col("path").str.split("/").list.last().alias("name"))
    twins = names.filter(pl.col("name").is_in(["copy.py", "near.py"]) | ~pl.col("keep"))
    assert {"copy.py", "near.py"} & set(twins.filter(~pl.col("keep"))["name"])
    kept = set(table.filter(pl.col("keep"))["id"])
    assert set(table.filter(~pl.col("keep"))["representative"]) <= kept


def test_the_report_shows_every_part_in_one_file(answer: dict[str, Any]) -> None:
    html = Path(answer["report"]).read_text()
    for title in ("Training", "Expert dispatch", "Mixture", "Duplicates", "Cells"):
        assert f">{title}</h2>" in html
    assert html.count("<svg ") >= 8
    assert "<script" not in html


def test_a_second_run_reuses_everything(answer: dict[str, Any], documents: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(answer["out"]).rglob("manifest.json")}
    start = time.monotonic()
    done = quickstart(documents, Path(answer["out"]), "--tokens", "80000", "--json")
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert again["final_loss"] == answer["final_loss"]
    after = {path: path.stat().st_mtime_ns for path in Path(answer["out"]).rglob("manifest.json")}
    assert after == before
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("kind", ["empty", "binary", "one", "unreadable", "missing", "output"])
def test_unusable_input_is_one_line_with_exit_code_2(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "input"
    folder.mkdir()
    if kind == "binary":
        (folder / "a.bin").write_bytes(bytes(range(256)) * 64)
    elif kind == "one":
        (folder / "a.txt").write_text("The only document of this folder is short.\n")
    elif kind == "unreadable":  # even for the superuser
        (folder / "a.txt").symlink_to("/proc/self/mem")
    elif kind == "missing":
        folder.rmdir()
    before = sorted(tmp_path.rglob("*"))
    out = folder if kind == "output" else tmp_path / "out"
    documents = folder / "a.txt" if kind == "unreadable" else folder
    done = quickstart(documents, out, "--json")
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("marin: ")
    assert [path for path in before if not path.exists()] == []


def test_too_few_tokens_name_their_cause(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match=r"--tokens 20,000: expected at least 80,000"):
        run([tmp_path], tmp_path / "out", QuickstartConfig(tokens=20_000))
    assert list(tmp_path.iterdir()) == []
    summary = {"cells": {"c00q0": {"tokens": 15_000}}}
    write_manifest(tmp_path, "store", parameters={}, inputs={}, rows={}, summary=summary)
    with pytest.raises(MarinError, match=r"^15,000 tokens in 0 documents: too few .*documents$"):
        make_schedule(tmp_path, QuickstartConfig())
