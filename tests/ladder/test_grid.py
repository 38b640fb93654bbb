"""Grids that can be read, and the single line for those that cannot be compared."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marin.errors import MarinError
from marin.ladder import Ladder, load_grid
from marin.ladder.history import read_history

CASES = Path(__file__).parents[1] / "cases" / "ladder"


def test_published_grid(published: Ladder) -> None:
    assert [rung.name for rung in published.rungs] == ["d768", "d1024", "d1536", "d2048", "d6144"]
    assert published.metric == "dropless_paloma_macro_loss"
    assert published.rungs[0].tokens == 11_420 * 1_024 * 4_096
    progress, values = published.rungs[3].curve(published.metric)
    assert progress[-1] == pytest.approx(0.8003, abs=1e-4)
    assert values[-1] == 2.474504232406616


Change = Callable[[list[dict[str, Any]]], None]
METRIC = "dropless_paloma_macro_loss"


def _drop_two(rungs: list[dict[str, Any]]) -> None:
    del rungs[2:4]


def _rename(rungs: list[dict[str, Any]]) -> None:
    rungs[1]["other_loss"] = rungs[1].pop(METRIC)


def _swap(rungs: list[dict[str, Any]]) -> None:
    rungs[0][METRIC][3], rungs[0][METRIC][4] = rungs[0][METRIC][4], rungs[0][METRIC][3]


def _set(index: int, key: str, value: object) -> Change:
    def change(rungs: list[dict[str, Any]]) -> None:
        rungs[index][key] = value

    return change


def _value(value: object) -> Change:
    def change(rungs: list[dict[str, Any]]) -> None:
        rungs[0][METRIC][2][1] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_drop_two, "2 rungs with evaluations (d768, d1024); a fit needs at least 3"),
        (_rename, "no metric is in every rung"),
        (_swap, "d768, dropless_paloma_macro_loss: step 2283 follows step 2854"),
        (_set(1, "seq_len", 8192), "mixed recipes: seq_len is 4096 in d768 and 8192 in d1024"),
        (_set(0, "mixture", "a"), None),
        (_set(0, "steps", 100), "outside the run's 100 steps"),
        (_set(0, "active_params", "many"), "active_params is 'many'; expected a positive number"),
        (_set(0, "tokens", 0), "tokens is 0"),
        (_set(1, "name", "d768"), "rung d768 appears 2 times"),
        (_value(float("nan")), "the value at step 1712 is nan"),
        (_value(None), "expected pairs [step, value] of numbers"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(
    published_path: Path, tmp_path: Path, change: Change, says: str | None
) -> None:
    grid = json.loads(published_path.read_text())
    change(grid["rungs"])
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(grid))
    if says is None:
        load_grid(path)
        return
    with pytest.raises(MarinError) as refusal:
        load_grid(path)
    assert says in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_metric_missing_in_one_rung_is_refused(published_path: Path) -> None:
    with pytest.raises(MarinError, match="metric bpb is missing in d768, d1024, d1536, d2048"):
        load_grid(published_path, "bpb")


@pytest.mark.parametrize("path", sorted(CASES.glob("bad-*")), ids=lambda path: path.name)
def test_hostile_files_are_refused_in_one_line(path: Path) -> None:
    with pytest.raises(MarinError) as refusal:
        load_grid(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MarinError, match="No such file"):
        load_grid(tmp_path / "none.json")


def test_evaluations_can_lie_in_an_exported_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        '"Step","run-a - loss","run-a - loss__MIN","run-a - loss__MAX"\n"4","3.5","3.5","3.5"\n'
        '"9","3.25","3.25","3.25"\n'
    )
    (tmp_path / "b.jsonl").write_text('{"step": 4, "loss": 3.0}\n{"step": 9, "loss": 2.75}\n')
    (tmp_path / "c.json").write_text(
        json.dumps({"history": [{"_step": 4, "loss": 2.5}, {"_step": 9, "loss": 2.25, "x": "y"}]})
    )
    rungs = [
        {"name": name, "steps": 10, "tokens": 1e3 * size, "active_params": size, "history": file}
        for name, size, file in (("a", 1, "a.csv"), ("b", 10, "b.jsonl"), ("c", 100, "c.json"))
    ]
    path = tmp_path / "grid.json"
    path.write_text(json.dumps({"rungs": rungs}))
    ladder = load_grid(path)
    assert [rung.metrics["loss"][1] for rung in ladder.rungs] == [
        (3.5, 3.25),
        (3, 2.75),
        (2.5, 2.25),
    ]
    assert ladder.rungs[0].train_flops == 6e3


def test_an_exported_file_whose_steps_are_tokens_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("Step,loss\n20480,3.5\n40960,3.25\n")
    rung = {"name": "a", "steps": 10, "tokens": 40_960, "active_params": 10, "history": "a.csv"}
    (tmp_path / "grid.json").write_text(json.dumps({"rungs": [rung]}))
    with pytest.raises(MarinError, match="rung a, loss: step 20480 lies outside the run's 10"):
        load_grid(tmp_path / "grid.json")


def test_columns_of_two_runs_in_one_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for header, says in (
        ("Step,a - loss,b - loss", r"columns of 2 runs \(a, b\); export each alone"),
        ("Step,a - loss,b - accuracy", r"columns of 2 runs \(a, b\)"),
        ("Step,a - loss,loss", "two columns of loss"),
    ):
        path.write_text(f"{header}\n4,3.5,\n9,,2.5\n")
        with pytest.raises(MarinError, match=says):
            read_history(path)


def test_columns_of_one_run_keep_their_steps_and_names_of_metrics_in_json_are_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Step,a - b - _step,a - b - loss,a - b - norm\n4,40,3.5,\n9,90,,0.5\n")
    assert read_history(path) == {"loss": ([4], [3.5]), "norm": ([9], [0.5])}
    path = tmp_path / "a.jsonl"
    path.write_text('{"step": 4, "loss/news - uk": 3.5, "loss/news - us": 3.0}\n')
    assert read_history(path) == {"loss/news - uk": ([4], [3.5]), "loss/news - us": ([4], [3.0])}


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", "nan", "inf", "-inf"])
def test_a_word_for_a_number_that_json_lacks_is_refused_as_the_number(
    published_path: Path, tmp_path: Path, word: str
) -> None:
    grid = json.loads(published_path.read_text())
    curve = grid["rungs"][0].pop(METRIC)
    curve[2][1] = word
    records = [json.dumps({"step": step, METRIC: value}) for step, value in curve]
    (tmp_path / "a.jsonl").write_text("\n".join(records))
    grid["rungs"][0]["history"] = "a.jsonl"
    (tmp_path / "grid.json").write_text(json.dumps(grid))
    with pytest.raises(MarinError, match=f"the value at step 1712 is {float(word)}"):
        load_grid(tmp_path / "grid.json")


def test_an_export_without_steps_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("loss\n3.5\n")
    with pytest.raises(MarinError, match="no record has a step"):
        read_history(tmp_path / "a.csv")
