"""`marin simulate drops`: the growth with row length, and agreement with the transports' counts."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from marin.cli.app import app
from marin.dispatch import Experts, PooledWave, Ragged, Routing
from marin.dispatch.routings import DocumentModel, read_routing, simulate_group
from marin.dispatch.simulate import DropStudy, drop_table, simulate_drops
from marin.errors import MarinError

SMALL = DropStudy(
    seq_lens=(64, 1024), capacities=(1.15,), devices=8, tokens_per_device=1024, sampled=512
)


def by_name(table: list[dict]) -> dict[tuple, dict]:
    return {(r["seq_len"], r["transport"], r["striped"]): r for r in table}


def test_dropping_grows_with_row_length_per_cell_and_not_with_striped_pools() -> None:
    table = by_name(simulate_drops(DocumentModel(192, 8), SMALL))
    short, long = (table[n, "cell", False]["dropped"] for n in SMALL.seq_lens)
    assert 0.05 < short < 0.16
    assert 0.35 < long < 0.45
    pooled = table[1024, "pooled_wave", False]["dropped"]
    assert table[64, "pooled_wave", False]["dropped"] < pooled < long
    assert table[64, "pooled_wave", True]["dropped"] < 0.005
    assert table[1024, "ragged", False]["dropped"] == 0
    assert table[1024, "ragged", False]["bytes"] > 1.1


def test_the_transports_count_on_real_arrays_what_the_simulation_says(bench) -> None:
    source = DocumentModel(16, 2)
    study = DropStudy(
        seq_lens=(64,), capacities=(1.15,), devices=8, tokens_per_device=64, sampled=64
    )
    group = simulate_group(source, seq_len=64, devices=8, tokens_per_device=64, sampled=64, seed=0)
    assignments = group.experts.size
    x = jnp.ones((8 * 64, 16))
    routing = Routing(
        jnp.asarray(group.experts.reshape(-1, 2)),
        jnp.asarray(group.weights.reshape(-1, 2)),
        jnp.ones(8 * 64, bool),
    )
    experts = Experts(*(jnp.ones(s) for s in ((16, 16, 8), (16, 16, 8), (16, 8, 16))))
    table = {(r["transport"], r["striped"]): r for r in drop_table(group, 16, study)}
    for transport, key in (
        (PooledWave(), ("pooled_wave", False)),
        (PooledWave(stripe=True), ("pooled_wave", True)),
        (Ragged(), ("ragged", False)),
    ):
        _, stats = bench.forward(
            x, routing, experts, transport=transport, mesh=bench.mesh_of(expert=8)
        )
        row = table[key]
        dropped = int(stats.dropped_sender) + int(stats.dropped_receiver)
        assert dropped == round(row["dropped"] * assignments)
        assert int(stats.tokens_lost) == round(row["tokens_lost"] * 8 * 64)
        assert int(stats.device_rows.max()) == round(row["rows"] * assignments / 8)
        np.testing.assert_allclose(stats.weight_lost / stats.weight, row["weight_lost"], rtol=1e-4)


def test_real_routing_is_drawn_document_by_document(tmp_path: Path) -> None:
    path = tmp_path / "routing.npz"
    documents = np.array([7, 3, 7, 3])
    experts = np.array([[0, 1], [2, 3], [1, 0], [3, 2]])
    np.savez(path, experts=experts, weights=experts / 4, documents=documents, num_experts=4)
    rows = np.repeat(np.arange(20), 16)
    chosen, weights = read_routing(path).tokens(rows, np.random.default_rng(0))
    np.testing.assert_array_equal(weights, chosen / 4)
    first = (chosen < 2).all(axis=1).reshape(20, 16)
    assert np.all(first.all(axis=1) | ~first.any(axis=1))
    assert 0 < first.mean() < 1


def test_the_command_prints_one_list_and_writes_a_plot(tmp_path: Path) -> None:
    plot = tmp_path / "drops.svg"
    arguments = (
        "simulate drops --devices 4 --experts 8 --top-k 2 --sampled 64 --seq-len 4096 --json"
    )
    result = CliRunner().invoke(
        app, [*arguments.split(), "--capacity", "1.15", "--plot", str(plot)]
    )
    assert result.exit_code == 0
    keys = {"seq_len", "transport", "capacity", "striped", "dropped", "tokens_lost", "weight_lost"}
    assert all(keys <= row.keys() for row in json.loads(result.stdout))
    assert plot.stat().st_size > 0


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"experts": [[0]], "weights": [[1.0]], "documents": [0]}, "has no array num_experts"),
        (
            {"experts": [[4]], "weights": [[1.0]], "documents": [0], "num_experts": 4},
            r"experts must be in \[0, 4\)",
        ),
        (
            {"experts": [[0]], "weights": [[1.0]], "documents": [0, 1], "num_experts": 4},
            r"documents \(2,\)",
        ),
    ],
)
def test_a_routing_file_that_does_not_fit_is_one_clear_line(
    tmp_path: Path, arrays: dict, message: str
) -> None:
    np.savez(tmp_path / "r.npz", **arrays)
    with pytest.raises(MarinError, match=message):
        read_routing(tmp_path / "r.npz")


@pytest.mark.parametrize(
    ("study", "message"),
    [
        (DropStudy(devices=5), "384 experts cannot be split over 5 devices"),
        (DropStudy(sampled=100), "100 sampled tokens per device"),
        (DropStudy(capacities=(0.0,)), "must be positive"),
    ],
)
def test_a_study_that_makes_no_sense_is_refused(study: DropStudy, message: str) -> None:
    with pytest.raises(MarinError, match=message):
        study.check(DocumentModel())
