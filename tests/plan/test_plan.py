"""The cost model against published figures and against what the code itself sends."""

import json
from dataclasses import replace

import jax
import pytest
from flax import nnx
from typer.testing import CliRunner

from marin.cli.app import app
from marin.dispatch.pooled_wave import PooledWave
from marin.errors import MarinError
from marin.model import abstract, memory
from marin.model.groups import optimizer_groups
from marin.model.presets import rung
from marin.plan import Factors, device, plan, step_cost
from marin.plan.answer import _fitting
from marin.plan.cost import orthogonalized
from marin.plan.factors import NOTES

GB200 = device("gb200")


def test_the_big_run_is_reproduced_within_15_percent_with_one_set_of_factors() -> None:
    answer = CliRunner().invoke(
        app, ["plan", "d6144", "--device", "gb200", "--racks", "11", "--json"]
    )
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert found["tokens_per_second_per_rack"] == pytest.approx(250_691, rel=0.15)
    assert found["mfu"] == pytest.approx(0.227, rel=0.15)
    assert found["days"] == pytest.approx(100, rel=0.15)
    assert sum(part["seconds"] for part in found["parts"]) == pytest.approx(found["step_seconds"])
    assert {fact["name"] for fact in found["assumptions"]} >= set(NOTES)
    held = found["memory"]
    assert held["fits"]
    assert held["needed"] <= held["available"]


def test_the_same_factors_give_the_small_rung_within_25_percent() -> None:
    small = rung("d2048")
    step = step_cost(small.config, GB200, groups=11, rows=small.batch, seq_len=4096)
    assert step.tokens_per_second == pytest.approx(24e6, rel=0.25)
    assert step.mfu(GB200, 704) == pytest.approx(0.136, rel=0.25)


def test_exchanged_bytes_are_those_of_the_traced_program() -> None:
    config = replace(rung("tiny").config, layers=2, remat="block", waves=1)
    assert isinstance(config.make_transport(), PooledWave)
    mesh = memory.abstract_mesh({"expert": 4})
    traced = memory.all_to_all_bytes(config, mesh, 16, 128)
    one = memory.exchanged_bytes(config, 4, 16 * 128 // 4)
    formula = config.layers * memory.passes_exchanged(config) * one
    assert traced == pytest.approx(formula, rel=0.15)


def test_what_the_backward_pass_makes_again_costs_time() -> None:
    small = rung("d768")

    def parts(transport: str, remat: str) -> dict[str, float]:
        config = replace(small.config, transport=transport, remat=remat)
        step = step_cost(config, GB200, groups=1, rows=64, seq_len=4096)
        return {part.name: part.amount for part in step.parts}

    for transport in ("ragged", "ring"):
        kept, again = parts(transport, "save_moe"), parts(transport, "block")
        for name in ("matrix products", "activations", "all-to-all"):
            assert again[name] > kept[name]
    pooled = parts("pooled_wave", "save_moe")
    assert pooled == parts("pooled_wave", "block")
    assert pooled["matrix products"] == parts("ragged", "save_moe")["matrix products"]
    # Buffers for the worst case of 64 ranks are swept whole.
    assert parts("ragged", "save_moe")["activations"] > 2 * pooled["activations"]


@pytest.mark.parametrize("name", ["tiny", "d768"])
def test_orthogonalizedorthogonalized_are_those_of_the_optimizers_group(name: str) -> None:
    config = rung(name).config
    params = nnx.state(abstract(config), nnx.Param)
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(optimizer_groups(params)), strict=True)
    held = sum(leaf.size for leaf, group in pairs if group == "muonh")
    assert sum(count * a * b for count, a, b in orthogonalized(config)) == held


def test_a_run_that_cannot_fit_says_so() -> None:
    held = memory.DeviceBytes(100, 100, 100, 800, 80, 20)
    assert _fitting(held, 16, 1300) == (1, 1200)
    assert _fitting(held, 16, 900) == (2, 850)
    assert _fitting(held, 16, 400) == (0, 400 + 57)


def test_wrong_sizes_are_one_line() -> None:
    config = rung("tiny").config
    with pytest.raises(MarinError, match="rows over 704 devices"):
        step_cost(config, GB200, groups=11, rows=100, seq_len=128)
    with pytest.raises(MarinError, match="8 experts over the 64 devices"):
        step_cost(config, GB200, groups=1, rows=64, seq_len=128)
    for size, says in (
        ({"seq_len": 10**30}, f"64 rows of {10**30} tokens over 64 devices: expected at most"),
        ({"rows": 10**30}, f"{10**30} rows of 4096 tokens over 64 devices: expected at most"),
        ({"groups": 10**30}, "0 racks: expected 1 to 1,048,576"),
    ):
        with pytest.raises(MarinError, match=says):
            plan("d6144", rung("d6144"), GB200, **({"groups": 1} | size))
    with pytest.raises(MarinError, match="expected one of gb200"):
        device("abacus")
    with pytest.raises(MarinError, match="0 racks"):
        plan("tiny", rung("tiny"), GB200, groups=0)


def test_every_factor_makes_a_run_faster_when_it_grows() -> None:
    small = rung("d768")
    base = step_cost(small.config, GB200, groups=2, rows=2048, seq_len=4096).seconds
    for name in ("matrix", "attention", "plain", "memory", "network"):
        better = replace(Factors(), **{name: 1.0})
        step = step_cost(small.config, GB200, groups=2, rows=2048, seq_len=4096, factors=better)
        assert step.seconds < base
