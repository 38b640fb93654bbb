"""An option that a command has no use for in one of its modes is refused, not ignored."""

import re
from pathlib import Path

import pytest
from support.packing import make_schedule, write_store
from typer.testing import CliRunner

from marin.cli.app import app
from marin.engine import write_json, write_manifest
from marin.errors import MarinError
from marin.packing import pack, plan

CASE = str(Path(__file__).parents[1] / "cases" / "mixture" / "ten_rows.toml")


def run(*arguments: object) -> None:
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (f"mix check {CASE} --batch-tokens 640", "--batch-tokens: .*add --rows"),
        (f"mix check {CASE} --row-length 0:4096 --threads 1", "--row-length, --threads: "),
        (f"mix check {CASE} --exhaustion never", "exhaustion 'never', expected one of error"),
        ("datakit ingest x --root r --format text --text body", "--text: files of format text"),
        ("datakit tokenize x --root r --eos none", "--eos: .*add --tokenizer"),
        ("datakit tokenize x --root r --tokenizer t --vocab-size 8192", "--vocab-size: "),
        (
            "datakit annotate embedding x --root r --dedup y",
            "--dedup: has no meaning for embedding",
        ),
        ("datakit annotate quality x --root r --domains 40", "--domains: has no meaning for qual"),
        ("datakit annotate domains x --root r --classifier y", "--classifier: has no meaning for"),
        ("datakit annotate speed x --root r", "'speed': expected embedding, domains, quality"),
        ("dedup x --out y --unit character --words 4", "--words: shingles of --unit character"),
        ("pack x --engine 2 --threads 2", "--threads: has no meaning with --engine 2"),
        ("simulate drops --routing x.npz --top-k 8", "--top-k: .*x.npz has its own"),
        ("bench dedup --corpus x --make-corpus", "--corpus DIR or --make-corpus"),
        ("bench dedup --corpus x --packages 2", "--packages: .*add --make-corpus"),
        ("bench dedup --corpus x --only rensa", "--only: .*add --peers"),
        ("bench mixture --only grain", "--only: .*add --peers"),
        ("bench pack --only grain", "--only: .*add --peers"),
        ("bench stream --only grain", "--only: .*add --peers"),
        ("bench balance --smoke --model d768", "--model: --smoke measures the preset tiny"),
        ("bench dispatch --smoke --model d768", "--model: --smoke measures the preset tiny"),
    ],
)
def test_an_option_of_another_mode_is_refused(command: str, message: str) -> None:
    with pytest.raises(MarinError, match=message):
        run(*command.split())


@pytest.mark.parametrize(
    "command", ["params tiny --rows 0", "params tiny --seq-len 0", "plan d768 --racks 0"]
)
def test_a_count_of_zero_is_not_taken_for_the_default(command: str) -> None:
    assert CliRunner().invoke(app, command.split()).exit_code == 2


def test_a_plan_and_shards_take_no_option_that_made_them(tmp_path: Path) -> None:
    store = write_store(tmp_path, {"c00q0": [5, 9, 16, 3] * 9})
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 16, 2)], 256)
    planned = plan(store, schedule, tmp_path)
    write_json(tmp_path / "schedule.json", schedule.to_json())
    for option, value in (
        ("--schedule", tmp_path / "schedule.json"),
        ("--after", planned),
        ("--policy", "best-fit"),
        ("--max-segments", 2),
        ("--min-fill", 0.5),
        ("--window", 9),
    ):
        with pytest.raises(MarinError, match=f"{option}: .*planned already; name the store"):
            run("pack", planned, option, value, "--out", tmp_path / "packed")
    shards = pack(planned, tmp_path)
    for arguments in (["--shard-tokens", 64], ["--documents"], ["--out", tmp_path / "packed"]):
        with pytest.raises(MarinError, match=f"{arguments[0]}: .*packed already; name the plan"):
            run("pack", shards, "--verify", *arguments)
    other = tmp_path / "other"
    other.mkdir()
    write_manifest(other, "ingest", parameters={}, inputs={}, rows={})
    with pytest.raises(MarinError, match="other: a directory of stage ingest; expected a store"):
        run("pack", other, "--schedule", tmp_path / "schedule.json")
    assert not (tmp_path / "packed").exists()
    run("pack", planned, "--shard-tokens", 64, "--verify", "--out", tmp_path / "packed")


def test_pack_names_documents_cut_that_are_no_longer_than_a_row(tmp_path: Path) -> None:
    store = write_store(tmp_path, {"c00q0": [10] * 30})
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 16, 2)], 256)
    write_json(tmp_path / "schedule.json", schedule.to_json())
    command = ["pack", store, "--schedule", tmp_path / "schedule.json", "--policy", "concat"]
    result = CliRunner().invoke(app, list(map(str, command)), catch_exceptions=False)
    assert re.search(r"\d+ documents, [1-9]\d* of them cut$", result.stdout.strip())
