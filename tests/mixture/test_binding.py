"""Weights and the store they were made for."""

import pytest

from marin.errors import MarinError
from marin.mixture import Specification, tilted
from marin.mixture.binding import StoreCells, check_store, rebase

TOKENS = {"c00q0": 100, "c00q4": 300, "c01q4": 600}


def bound() -> Specification:
    return tilted("m", TOKENS, [("main", 100, 1.0)], store="aaaa")


def test_the_store_of_the_weights_is_accepted() -> None:
    check_store(bound(), StoreCells("aaaa", TOKENS))


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ({"c00q0": 100, "c00q4": 300}, "missing: c01q4"),
        ({**TOKENS, "c02q1": 7}, "new: c02q1"),
        ({**TOKENS, "c00q4": 301}, "changed: c00q4 300 -> 301 tokens"),
        (
            {"c00q0": 100, "c00q4": 300, "c09q4": 600},
            "by their tokens: c01q4 is now c09q4",
        ),
        (TOKENS, "bound to store aaaa, found bbbb"),
    ],
)
def test_another_store_is_refused_with_what_differs(tokens: dict[str, int], message: str) -> None:
    with pytest.raises(MarinError, match=f"{message}.*marin mix rebase"):
        check_store(bound(), StoreCells("bbbb", tokens))


def test_rebasing_follows_renames_and_binds_the_new_store() -> None:
    store = StoreCells("bbbb", {"c00q0": 100, "c00q4": 300, "c09q4": 600, "c02q1": 5})
    with pytest.raises(MarinError, match=r"--rename c01q4=c09q4 fits by tokens"):
        rebase(bound(), store)
    result = rebase(bound(), store, renames={"c01q4": "c09q4"})
    assert result.phases[0].weights == {"c00q0": 0.1, "c00q4": 0.3, "c09q4": 0.6, "c02q1": 0.0}
    check_store(result, store)


def test_rebasing_gives_a_lost_cells_weight_to_the_others() -> None:
    store = StoreCells("bbbb", {"c00q0": 100, "c00q4": 300})
    result = rebase(bound(), store, drop_missing=True)
    assert result.phases[0].weights == {"c00q0": 0.25, "c00q4": 0.75}
    with pytest.raises(MarinError, match="no cell with a weight is left"):
        rebase(bound(), StoreCells("cccc", {"c05q0": 1}), drop_missing=True)
