"""The judgement of other mixers, on an order short enough to count by hand."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from marin.bench.mixture.measure import judge
from marin.cli.app import app
from marin.errors import MarinError


def test_an_orders_distances_and_missing_cells_are_those_of_its_worst_row() -> None:
    # Halves in turn: at most half a row off. All of one cell first: off by a quarter of the rows.
    assert judge(np.array([0, 1, 0, 1]), [1.0, 1.0]) == (0.5, 0.0, 0)
    assert judge(np.array([0, 0, 1, 1]), [1.0, 1.0]) == (1.0, 0.0, 0)
    # A cell that is due one row of two and gets none, and one too light to be due a row.
    assert judge(np.array([0] * 4), [1.0, 1.0]) == (2.0, 50.0, 1)
    assert judge(np.array([0] * 4), [1.0, 1e-9])[2] == 0


def test_an_unknown_mixer_is_named() -> None:
    with pytest.raises(MarinError, match="other: unknown; known are marin-levanter"):
        command = ["bench", "mixture", "--peers", "--only", "other", "--json"]
        json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
