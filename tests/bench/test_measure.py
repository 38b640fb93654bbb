"""What each measurement leaves, on inputs of a second: names, units, and runs with their median."""

import importlib.util
import re
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marin.bench.mixture
import marin.bench.packing
import marin.bench.results as results_module
import marin.bench.stream
from marin.bench.corpus import build_store
from marin.bench.results import Results, timed
from marin.engine import Silent

PATH = Path(__file__).parents[2] / "benches" / "tokenize_documents.py"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces constants of a module, and how long each of its measurements takes."""

    def patch(module: str, **values: object) -> None:
        for name, value in values.items():
            monkeypatch.setattr(sys.modules[f"marin.bench.{module}"], name, value)

    monkeypatch.setattr(results_module, "timed", partial(timed, seconds=0.0))
    return patch


def check(report: dict[str, Any], units: dict[str, str], measured: set[str]) -> None:
    """That the lines are those of `units` by metric, and that those `measured` have runs."""
    assert {line["metric"]: line["unit"] for line in report["results"]} == units
    assert {line["metric"] for line in report["results"] if len(line["runs"]) > 1} == measured
    for line in report["results"]:
        assert list(line) == ["tool", "version", "metric", "value", "unit", "runs"]
        if line["runs"]:
            assert line["value"] == pytest.approx(statistics.median(line["runs"])), line["metric"]
    assert report["machine"]["cores"] >= 1


def test_packing(small: Callable[..., None], tmp_path: Path) -> None:
    small("packing.large", CELLS=1, DOCUMENTS=500)
    small("packing.measure", _ROW_LENGTHS=(4096,), _PLAN_DOCUMENTS=2000, _ROUNDS=2)
    small("packing.measure", build_store=partial(build_store, documents=600))
    report = marin.bench.packing.measure([], tmp_path, progress=Silent())
    for line in report["results"]:  # how many documents fill the rows is drawn
        line["metric"] = re.sub(r"of \d+ documents", "of some documents", line["metric"])
    sizes = (4096, 8192, 65_536)
    rates = {
        "plan from lengths, rows of 4096": "documents/s",
        **{f"plan from a store of some documents, rows of {n}": "documents/s" for n in sizes},
        "copy into fresh memory": "tokens/s",
        "assemble tokens": "tokens/s",
        "assemble tokens, ids, positions and mask": "tokens/s",
        "store to finished shards on disk, 1 threads": "tokens/s",
        "store to finished shards on disk, 2 threads": "tokens/s",
        "plain write of the same shards, flushed": "tokens/s",
    }
    derived = {
        "padding, rows of 4096": "%",
        "rows over the lower bound, rows of 4096": "%",
        "tokens lost, rows of 4096": "tokens",
        **{f"padding of that plan, rows of {size}": "%" for size in sizes},
        "assemble tokens, against the copy": "%",
    }
    check(report, rates | derived, set(rates))


def test_stream(small: Callable[..., None], tmp_path: Path) -> None:
    small("stream.long_run", ROW_4_BILLION=1 << 10, _ROWS=1 << 11)
    small("stream.measure", ROW_4_BILLION=1 << 10, _LONG_SHARD=1 << 20, _RESUMES=3)
    small("stream.measure", build_store=partial(build_store, documents=600))
    small("stream.measure", timed=partial(timed, seconds=0.0), _in_a_process=lambda work: work())
    report = marin.bench.stream.measure([], tmp_path, progress=Silent())
    sources = ("from shards, checksums on", "from the store", "from shards to JAX arrays")
    places = ("row 0", "row 64", "row 0 of 2,048", "row 1,024 of 2,048")
    measured = {
        "copy into fresh memory": "tokens/s",
        **{f"tokens, ids, positions and mask, {name}, one core": "tokens/s" for name in sources},
        **{f"first batch after a resume at {place}": "ms" for place in places},
    }
    derived = {f"peak memory of a process, {name}": "MB" for name in sources}
    check(report, measured | derived, set(measured))


def test_mixture(small: Callable[..., None]) -> None:
    sizes = {"_ORDER_BATCHES": 1, "_SAMPLED_ROWS": 2000, "_RANDOM_ROWS": 1000}
    small("mixture.measure", timed=partial(timed, seconds=0.0), **sizes)
    report = marin.bench.mixture.measure([], progress=Silent())
    measured = {"plan of the 18.75 T run": "s", "access to a random row": "us/row"}
    measured["order"] = "rows/s"
    places = ("2,000 rows", "every batch boundary", "proven for every row")
    derived = {f"farthest from a target, {place}": "rows" for place in places}
    derived |= {"memory of the plan": "MB", "cells that never appear": "cells"}
    check(report, measured | derived, set(measured))


def test_tokenization_reports_rates_and_their_ratio() -> None:
    spec = importlib.util.spec_from_file_location("tokenize_documents", PATH)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    results = Results()
    script.add_rates(results, 120.0, {"tokenizers": [1.0, 2.0, 3.0], "marin": [4.0, 3.0, 6.0]})
    units = {"text to tokens": "MB/s", "rate over the library's": ""}
    check(results.report(), units, set(units))
    library, ours, ratio = results.lines
    assert (library["runs"], ours["runs"]) == ([120.0, 60.0, 40.0], [30.0, 40.0, 20.0])
    assert ratio["runs"] == [1 / 4, 2 / 3, 1 / 2]  # turn by turn
