"""What a ladder compares unless it is told."""

import pytest
from support.ladder import evaluation

from marin.errors import MarinError
from marin.ladder.metric import PREFERRED, choose_metric

TRAINED = {"loss", "total_loss", "z_loss", "grad_norm", "tokens_lost", *evaluation(2.0)}


@pytest.mark.parametrize("taken", range(7))
def test_means_over_domains_come_first_and_then_the_training_loss(taken: int) -> None:
    order = [*(name for name in PREFERRED if "paloma" not in name), "loss", "total_loss", "z_loss"]
    left = TRAINED - set(order[:taken])
    assert choose_metric({"a": left, "b": TRAINED}, None, "runs") == order[taken]


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        ({"dropless_paloma_macro_loss", "loss", "bpb"}, "dropless_paloma_macro_loss"),
        ({"validation_loss", "loss"}, "validation_loss"),
        ({"eval/loss/c00", "eval/loss/c01", "loss"}, "loss"),
        ({"eval/loss/c00", "bpb"}, "eval/loss/c00"),
    ],
)
def test_other_names_fall_in_behind(names: set[str], chosen: str) -> None:
    assert choose_metric({"a": names}, None, "grid") == chosen


def test_a_metric_that_not_all_have_is_refused() -> None:
    with pytest.raises(MarinError, match="metric x is missing in b; metrics of all rungs: loss"):
        choose_metric({"a": {"x", "loss"}, "b": {"loss"}}, "x", "runs")
