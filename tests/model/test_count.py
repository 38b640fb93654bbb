import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx
from typer.testing import CliRunner

from marin.cli.app import app
from marin.dispatch import ragged_exchange
from marin.dispatch.exchange import payload_bytes
from marin.dispatch.pooled_wave import pool_rows
from marin.errors import MarinError
from marin.model import PRESETS, HeroConfig, abstract, preset
from marin.model.batch import Batch
from marin.model.count import parts, train_flops_per_token
from marin.model.memory import (
    abstract_mesh,
    all_to_all_bytes,
    device_bytes,
    exchanged_bytes,
    passes_exchanged,
    rows_per_device,
)

# Active and total parameters, and training FLOPs, as published.
PUBLISHED = {
    "d768": (60_555_264, 1.6e9, 5.5e19),
    "d1024": (162_004_992, 4.0e9, 2.7e20),
    "d1536": (481_296_384, 11.5e9, 1.8e21),
    "d2048": (1_170_735_104, 27.7e9, 9.2e21),
    "d6144": (22_762_487_808, 535_305_388_032, 2.7e24),
}


def by_formula(c: HeroConfig, experts: int) -> int:
    d, w, m, heads = c.hidden, c.latent, c.expert_width, c.head_dim * (c.heads + c.kv_local)
    return c.layers * (
        2 * d * heads
        + d * c.experts
        + experts * 3 * w * m
        + 2 * d * w
        + c.shared_experts * 3 * d * m
    )


@pytest.mark.parametrize("name", list(PRESETS))
def test_counts_of_the_module_are_the_published_ones_and_the_formula(name: str) -> None:
    config = preset(name)
    counted = parts(config)
    active = sum(part.active for part in counted.values())
    total = sum(part.total for part in counted.values())
    assert active == by_formula(config, config.top_k)
    assert total == by_formula(config, config.experts) + 2 * config.vocab * config.hidden
    module = sum(
        math.prod(x.shape) for x in jax.tree.leaves(nnx.state(abstract(config), nnx.Param))
    )
    assert sum(part.parameters for part in counted.values()) == module
    if name in PUBLISHED:
        published_active, published_total, flops = PUBLISHED[name]
        assert active == published_active
        assert total == pytest.approx(published_total, rel=0.012)
        rung = PRESETS[name]
        ours = train_flops_per_token(config, rung.seq_len) * rung.tokens
        assert ours == pytest.approx(flops, rel=0.05)
    if name == "d6144":
        assert total == PUBLISHED[name][1]


def test_all_to_all_bytes_are_the_pools_of_every_wave_forth_and_back(tiny: HeroConfig) -> None:
    config = dataclasses.replace(tiny, transport="pooled_wave", remat="none")
    mesh = abstract_mesh({"replica": 2, "expert": 4})
    rows, length = 16, 24
    assignments = rows * length // 8 * config.top_k
    sent = 4 * pool_rows(config.make_transport(), assignments, 4)
    width = config.latent
    out = payload_bytes((width, "float32"), (2, "int32"))
    back = payload_bytes((width, "float32"), (1, "int32"))
    per_layer = sent * (out + back + 2 * 4 * width)
    ours = all_to_all_bytes(config, mesh, rows, length)
    assert ours == config.layers * per_layer * 3 // 4
    assert all_to_all_bytes(tiny, mesh, rows, length) == 0


@pytest.mark.parametrize("remat", ["save_moe", "block"])
def test_bytes_around_the_ring_are_those_of_the_formula(tiny: HeroConfig, remat: Any) -> None:
    config = dataclasses.replace(tiny, transport="ring", remat=remat)
    mesh = abstract_mesh({"replica": 2, "expert": 4})
    rows, length = 16, 24
    tokens = rows * length // 8
    once = 4 * tokens * config.latent
    turns = (2 if remat == "block" else 1) * 4 * 2 * once + 4 * 3 * once
    assert all_to_all_bytes(config, mesh, rows, length) == config.layers * turns
    per_layer = passes_exchanged(config) * exchanged_bytes(config, 4, tokens)
    assert config.layers * per_layer == pytest.approx(config.layers * turns)
    alone = abstract_mesh({"replica": 8})
    assert all_to_all_bytes(config, alone, rows, length) == 0


@pytest.mark.parametrize("remat", ["none", "save_moe", "block"])
def test_bytes_of_ragged_are_the_true_rows_of_every_exchange_in_the_program(
    tiny: HeroConfig, remat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = dataclasses.replace(tiny, transport="ragged", remat=remat)
    mesh = abstract_mesh({"replica": 2, "expert": 4})
    rows, length = 16, 24
    tokens = rows * length // 8
    monkeypatch.setattr(ragged_exchange, "choose", lambda *_: "pallas_gpu")
    graph, params, *state = nnx.split(abstract(config), nnx.Param, ...)

    def loss(params: Any, state: Any, batch: Batch) -> Any:
        return nnx.merge(graph, params, *state).loss(batch, mesh=mesh)[0]

    tokens_of = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    batch = Batch(tokens_of, tokens_of, tokens_of, jax.ShapeDtypeStruct((rows, length), jnp.bool_))
    text = str(jax.make_jaxpr(jax.grad(loss))(params, state, batch))
    # In one layer's scan over its four chunks; forward bodies and backward bodies are apart.
    exchanges = text.count("ragged_all_to_all[")
    true = 4 * tokens * config.top_k * config.latent * exchanges
    ours = all_to_all_bytes(config, mesh, rows, length)
    assert ours == config.layers * true * 3 // 4


def test_activations_of_one_chunk_or_visit_count_for_ragged_and_ring(tiny: HeroConfig) -> None:
    mesh = abstract_mesh({"expert": 4})
    held = {
        (name, remat): device_bytes(
            dataclasses.replace(tiny, transport=name, remat=remat), mesh, 8, 32
        )
        for name in ("local", "ring", "ragged")
        for remat in ("none", "save_moe")
    }
    assignment = 2 * 32 * tiny.top_k * tiny.latent * 4
    for name in ("ring", "ragged"):
        none, kept = held[name, "none"], held[name, "save_moe"]
        assert none.saved_activations < held["local", "none"].saved_activations
        # What comes in and goes out by the exchanges of a chunk is held besides.
        extra = kept.layer_activations - held["local", "save_moe"].layer_activations
        assert extra == 0 if name == "ring" else extra >= assignment
        assert none.layer_activations >= 2 * assignment


def test_activations_shrink_with_rematerialization_and_weights_with_the_mesh(
    tiny: HeroConfig,
) -> None:
    mesh = abstract_mesh({"expert": 4})
    kept = {
        remat: device_bytes(dataclasses.replace(tiny, remat=remat), mesh, 8, 32)
        for remat in ("none", "save_moe", "block")
    }
    saved = [kept[remat].saved_activations for remat in ("none", "save_moe", "block")]
    assert saved == sorted(saved, reverse=True)
    assert saved[0] > 4 * saved[2]
    latent = tiny.layers * 2 * 32 * tiny.latent * 4
    assert saved[1] - saved[2] == latent
    alone = device_bytes(dataclasses.replace(tiny, remat="none"), abstract_mesh({}), 2, 32)
    assert alone.saved_activations == saved[0]
    assert 3 < alone.weights / kept["none"].weights < 4
    with pytest.raises(MarinError, match="10 rows over 4"):
        rows_per_device(mesh, 10)


def test_params_answers_with_one_object_and_names_mistakes() -> None:
    run = CliRunner()
    result = run.invoke(app, ["params", "tiny", "--mesh", "expert=2", "--json"])
    answer = json.loads(result.stdout)
    assert {"active", "total", "train_flops", "by_part", "per_device"} <= answer.keys()
    assert answer["mesh"] == {"replica": 1, "data": 1, "expert": 2, "model": 1}
    for wrong in (["d7"], ["tiny", "--mesh", "expert"], ["tiny", "--mesh", "rack=2"]):
        assert isinstance(run.invoke(app, ["params", *wrong]).exception, MarinError)


def test_params_reads_a_file_as_training_does(tmp_path: Path) -> None:
    run, path = CliRunner(), tmp_path / "model.toml"

    def answer(text: str, *arguments: str) -> dict[str, Any]:
        path.write_text(text)
        result = run.invoke(app, ["params", str(path), *arguments, "--json"])
        assert result.exit_code == 0, result.exception
        return json.loads(result.stdout)

    of_preset = json.loads(run.invoke(app, ["params", "tiny", "--seq-len", "64", "--json"]).stdout)
    of_file = answer('run = "elsewhere"\n[model]\npreset = "tiny"\n', "--seq-len", "64")
    for same in ("active", "total", "by_part", "flops_by_part", "mesh"):
        assert of_file[same] == of_preset[same]
    assert (of_file["train_flops"], of_file["train_tokens"], of_file["rows"]) == (None, None, 1)
    sizes = dataclasses.asdict(preset("tiny")) | {"layers": 2}
    whole = "[model]\n" + "".join(f"{k} = {json.dumps(v)}\n" for k, v in sizes.items())
    spread = answer(whole, "--seq-len", "64", "--mesh", "expert=4")
    assert (spread["rows"], spread["mesh"]["expert"]) == (4, 4)
    assert spread["total"] < of_file["total"]
    path.write_text('[model]\npreset = "tiny"\n')
    assert "active" in run.invoke(app, ["params", str(path), "--seq-len", "64"]).stdout


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hidden = 64", "expected a table with a preset"),
        ("[model]\npreset = 'tiny'\nwidth = 3", "unknown field 'width'"),
        ("[model", "not valid TOML"),
    ],
)
def test_params_names_what_is_wrong_in_a_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "model.toml"
    path.write_text(text)
    refusal = CliRunner().invoke(app, ["params", str(path)]).exception
    assert isinstance(refusal, MarinError)
    assert says in str(refusal)
