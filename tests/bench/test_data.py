"""The stores that benchmarks make up: their lengths are real, their tokens are holes."""

from time import sleep

import numpy as np
import pytest

import marin.bench.packing.large as large
from marin.bench.corpus import lengths
from marin.bench.results import Results, chosen
from marin.errors import MarinError
from marin.packing.store import Store


def test_a_store_of_holes_has_its_lengths_and_takes_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr(large, "CELLS", 2)
    monkeypatch.setattr(large, "DOCUMENTS", 5000)
    store = Store(large.build_lengths(tmp_path))
    assert large.build_lengths(tmp_path) == store.path
    for number, cell in enumerate(store.cells):
        documents = np.arange(5000)
        assert np.array_equal(store.cell(cell).lengths(documents), lengths(5000, number))
    files = [path.stat() for path in store.path.rglob("*.arrow")]
    assert sum(file.st_size for file in files) > 10_000 * 1000 * 4
    assert sum(file.st_blocks * 512 for file in files) < 2_000_000


def test_a_line_has_the_keys_of_the_contract():
    results = Results()
    value = results.rate("numpy", "waiting", 4, "rows", lambda: sleep(0.4))
    (line,) = results.report()["results"]
    assert list(line) == ["tool", "version", "metric", "value", "unit", "runs"]
    assert (line["value"], line["unit"], len(line["runs"])) == (value, "rows/s", 3)
    assert 5 < value <= 10


def test_a_tool_that_is_missing_or_unknown_is_named():
    with pytest.raises(MarinError, match="another: unknown; known are no-such-tool"):
        chosen(["another"], {"no-such-tool": 1})
    with pytest.raises(MarinError, match="no-such-tool: not installed"):
        chosen(["no-such-tool"], {"no-such-tool": 1})
