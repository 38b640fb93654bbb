"""What a specification refuses, and in which words."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from marin.errors import MarinError
from marin.mixture import Phase, Specification, load, tilted
from marin.mixture.diff import compare
from marin.mixture.epochs import check_cap, exposures, warnings

CASES = Path(__file__).parents[1] / "cases" / "mixture"


def value(**changes: Any) -> dict[str, Any]:
    weights = changes.pop("weights", {"a": 0.25, "b": 0.75})
    return {
        "name": "m",
        "phases": [{"name": "p", "tokens": 1000, "weights": weights}],
        "available_tokens": {"a": 100, "b": 2000},
        **changes,
    }


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": {"a": 0.25, "b": 0.7}}, r"weights sum to 0.95, expected 1 within 1e-9"),
        ({"weights": {"a": 0.25, "b": float("nan")}}, "weight of cell b is nan"),
        ({"weights": {"a": 1.25, "b": -0.25}}, "weight of cell b is -0.25"),
        ({"weights": {"a": 0.25, "b": True}}, "weight of cell b is True"),
        ({"weights": {"a": 0.25, "b": 0.7, "c": 0.05}}, "unknown cells c"),
        ({"weights": {"a": 1.0}}, "no weights for cells b"),
        ({"available_tokens": {"a": 0, "b": 1}}, "cells a have a weight but no available tokens"),
        ({"available_tokens": {"a": 1.5, "b": 1}}, "available_tokens of cell a is 1.5"),
        ({"epoch_cap": 0}, "epoch_cap 0, expected a number above 0"),
        ({"epoch_cap": "8"}, "epoch_cap '8'"),
        ({"phases": []}, "no phases"),
        ({"phases": [{"tokens": 1}]}, "phase lacks the key 'weights'"),
        ({"phases": 3}, "phases is 3, expected a list"),
        ({"phase": []}, "unknown key 'phase'"),
    ],
)
def test_a_broken_rule_is_one_line_with_cells_and_figures(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(MarinError, match=message) as caught:
        Specification.from_json(value(**changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"a": 1}', "\x00", "[" * 5000])
def test_a_file_that_is_no_mixture_is_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(MarinError, match=r"m\.json") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(MarinError, match="key 'a' appears twice"):
        load(CASES / "twice.json")


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    spec = load(CASES / "ten_rows.toml")
    path = tmp_path / "same.json"
    path.write_text(json.dumps(spec.to_json()))
    assert load(path) == spec


def test_normalizing_scales_to_an_exact_sum() -> None:
    spec = Specification.from_json(value(weights={"a": 3, "b": 1e-300}), normalize=True)
    assert abs(sum(map(Fraction, spec.phases[0].weights.values())) - 1) < Fraction(1, 10**15)


def test_the_fingerprint_depends_on_weights_and_not_on_order_or_notes() -> None:
    first = Specification.from_json(value())
    second = Specification.from_json(value(weights={"b": 0.75, "a": 0.25}, about="other words"))
    third = Specification.from_json(value(weights={"b": 0.7, "a": 0.3}))
    assert first.fingerprint == second.fingerprint != third.fingerprint
    assert first.cells == second.cells == ("a", "b")


def test_the_preset_holds_its_published_facts() -> None:
    spec = load("harrier-2026.08.18")
    assert [phase.tokens for phase in spec.phases] == [15 * 10**12, 3_750_000_000_000]
    assert sum(spec.available_tokens.values()) == 23_106_103_007_622
    most = max(exposures(spec), key=lambda exposure: exposure.total_epochs)
    assert (len(spec.cells), most.cell, round(most.total_epochs, 3)) == (200, "c12q4", 2.093)
    check_cap(spec)


def test_the_cap_is_judged_over_all_phases() -> None:
    phases = [{"name": n, "tokens": 150, "weights": {"a": 0.5, "b": 0.5}} for n in ("p", "q")]
    spec = Specification.from_json(value(phases=phases, epoch_cap=1.0))
    with pytest.raises(MarinError, match=r"cells a exceed the cap of 1.0 epochs.* a with 1.5"):
        check_cap(spec)


def test_tilting_favours_quality_and_leaves_empty_cells_out() -> None:
    tokens = {"c00q0": 100, "c00q4": 100, "c01q2": 0}
    spec = tilted("t", tokens, [("main", 80, 1.0), ("anneal", 20, 2.0)])
    assert spec.phases[0].weights == {"c00q0": 0.5, "c00q4": 0.5, "c01q2": 0.0}
    assert spec.phases[1].weights["c00q4"] == 16 * spec.phases[1].weights["c00q0"]
    assert any("c01q2" in warning for warning in warnings(spec))
    with pytest.raises(MarinError, match="none of its 1 cells has tokens"):
        tilted("t", {"c00q0": 0}, [("main", 1, 1.0)])
    with pytest.raises(MarinError, match="cells web name no quality bucket"):
        tilted("t", {"web": 1}, [("main", 1, 1.0)])


def test_a_comparison_adds_up_and_names_what_moved() -> None:
    tokens = {"c00q0": 100, "c00q4": 100, "c01q4": 200}
    before = tilted("b", tokens, [("main", 100, 1.0)])
    after = tilted("a", tokens, [("main", 100, 3.0)])
    changes = compare(before, after)
    for group in changes.values():
        assert abs(sum(change.moved for change in group)) < 1e-12
    assert changes["by_quality"][0].name in ("q0", "q4")
    assert changes["by_domain"][0].name == "c00"


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a\\b", "a\nb", "x" * 201, "é" * 101, "\udc80", "a\u202eb"],
)
def test_a_cell_name_that_is_no_name_of_a_folder_is_refused(name: str) -> None:
    phases = (Phase("one", 100, {name: 1.0}),)
    with pytest.raises(MarinError, match="expected 1 to 200 bytes of printable text") as error:
        Specification("named", phases, {name: 100})
    str(error.value).encode()
