"""Commands that look at a trained model, on a checkpoint of a small run with real shards."""

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file
from support.packing import make_schedule, write_store
from support.training import tiny_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from typer.testing import CliRunner

from marin.cli.app import app
from marin.cli.trained import load_trained, tokenizer_of
from marin.compat import QUICK_COMPILE
from marin.datakit import load_tokenizer
from marin.engine import read_manifest
from marin.errors import MarinError
from marin.model import Batch, make_mesh
from marin.model.export import import_model
from marin.packing import pack, plan
from marin.train.checkpoint import Checkpoints
from marin.train.config import TrainConfig
from marin.train.run_directory import RunDirectory
from marin.train.source import open_source
from marin.train.state import named_arrays, take_apart

PROMPT = "abba cab"


def byte_tokenizer(root: Path) -> Path:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    path = root / "bytes.json"
    tokenizer.save(str(path))
    return load_tokenizer(str(path), root)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with one checkpoint, of step 3, that holds random weights."""
    root = tmp_path_factory.mktemp("trained")
    tokenizer = read_manifest(byte_tokenizer(root)).summary
    lengths = np.random.default_rng(0).integers(20, 90, 60).tolist()
    store = write_store(root, {"c00q0": lengths}, tokenizer=tokenizer)
    schedule = make_schedule({"c00q0": 1.0}, [(0.0, 64, 4)], 12 * 4 * 64)
    shards = pack(plan(store, schedule, root), root)
    config = TrainConfig(shards=shards, run=root / "run", model=tiny_model(vocab=50_000))
    config.run.mkdir()
    directory = RunDirectory(config.run)
    directory.claim(config)
    directory.curriculum(config, open_source(directory.legs(config)))
    layout = take_apart(config.model, make_mesh()).layout
    draw = np.random.default_rng(1)
    arrays = {
        name: jax.device_put((0.3 * draw.standard_normal(x.shape)).astype(x.dtype), x.sharding)
        for name, x in named_arrays(layout).items()
    }
    checkpoints = Checkpoints(directory.checkpoints, keep=1)
    lines = "".join(f'{{"step": {step}}}\n' for step in range(3))
    directory.metrics.write_text(lines)
    checkpoints.save(3, arrays, {"metrics_bytes": len(lines)})
    checkpoints.close()
    return config.run


def invoke(*arguments: str) -> Any:
    result = CliRunner().invoke(app, [*arguments, "--json"])
    if result.exception:
        raise result.exception
    return json.loads(result.stdout)


def test_greedy_generation_with_the_cache_writes_the_likeliest_tokens(run: Path) -> None:
    answer = invoke("generate", str(run), PROMPT, "--tokens", "6", "--temperature", "0")
    assert answer["step"] == 3
    trained = load_trained(run, None)
    tokenizer = Tokenizer.from_file(str(tokenizer_of(run, None) / "tokenizer.json"))
    tokens = tokenizer.encode(PROMPT).ids + answer["tokens"]
    row = np.array([tokens], np.int32)
    whole = Batch(row, np.ones_like(row), np.arange(row.size, dtype=np.int32)[None], row >= 0)
    graph, state = nnx.split(trained.model)
    run_whole = jax.jit(
        lambda state, batch: nnx.merge(graph, state).logits(batch, mesh=trained.mesh),
        compiler_options=QUICK_COMPILE,
    )
    logits = run_whole(state, whole)
    likeliest = np.asarray(logits[0].argmax(-1))[len(PROMPT) - 1 : -1]
    np.testing.assert_array_equal(answer["tokens"], likeliest)
    assert answer["text"] == tokenizer.decode(answer["tokens"])


def test_an_export_is_imported_exactly_and_read_by_the_safetensors_library(
    run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "model"
    assert invoke("export", str(run), str(out)) == {"step": 3, "out": str(out)}
    model = load_trained(run, 3).model
    again = import_model(out, make_mesh(expert=4))
    assert again.config == model.config
    for ours, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    files = json.loads((out / "model.safetensors.index.json").read_text())["weight_map"]
    head = load_file(out / files["lm_head.weight"])["lm_head.weight"]
    np.testing.assert_array_equal(head, model.readout[...])


def test_drops_are_simulated_from_the_routing_of_a_run(run: Path) -> None:
    sizes = ["--devices", "4", "--sampled", "64", "--tokens-per-device", "64"]
    sizes += ["--seq-len", "64", "--capacity", "1.15"]
    table = invoke("simulate", "drops", "--routing", str(run), "--layer", "1", *sizes)
    assert {row["transport"] for row in table} == {"cell", "pooled_wave", "ragged"}
    assert table[0]["dropped"] > 0
    with pytest.raises(MarinError, match="--layer is 2; its model has layers 0 to 1"):
        invoke("simulate", "drops", "--routing", str(run), "--layer", "2", *sizes)
    with pytest.raises(MarinError, match="--layer and --at choose from a run"):
        invoke("simulate", "drops", "--layer", "1", *sizes)


def test_a_checkpoint_that_is_not_there_is_one_line(run: Path) -> None:
    with pytest.raises(MarinError, match=r"no complete checkpoint of step 4; found \[3\]"):
        invoke("generate", str(run), PROMPT, "--at", "4")


def test_the_tokenizer_is_named_by_its_directory_or_file_or_found_beside_the_store(
    run: Path, tmp_path: Path
) -> None:
    found = tokenizer_of(run, None)
    assert tokenizer_of(run, found) == found
    assert tokenizer_of(run, found / "tokenizer.json") == found
    far = tmp_path / "a" / "b" / "run"
    far.mkdir(parents=True)
    for name in ("config.toml", "plan.json"):
        (far / name).write_bytes((run / name).read_bytes())
    assert tokenizer_of(far, None) == found
    plan = json.loads((far / "plan.json").read_text())
    plan["legs"][0]["shards"] = str(tmp_path / "gone")
    (far / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(MarinError, match=r"name it with --tokenizer: the directory that"):
        tokenizer_of(far, None)
    assert tokenizer_of(far, found) == found


def test_another_tokenizer_than_the_datas_is_refused_before_the_model_is_read(
    run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "other.json"
    other = Tokenizer(models.WordLevel({"abba": 0, "cab": 1}, "abba"))
    other.save(str(path))
    named = load_tokenizer(str(path), tmp_path)
    with pytest.raises(MarinError, match=r"but the data of .* was made with"):
        invoke("generate", str(run), PROMPT, "--tokenizer", str(named))
    with pytest.raises(MarinError, match=r"other.json: no tokenizer.json; expected"):
        invoke("generate", str(run), PROMPT, "--tokenizer", str(path))


def test_a_branch_is_made_beside_its_parent(run: Path, tmp_path: Path) -> None:
    parent = shutil.copytree(run, tmp_path / "run")
    options = ("--at", "3", "--cooldown", "4", "--seq-len", "128")
    answer = invoke("train", "branch", str(parent), *options)
    child = tmp_path / "run-branch-3"
    assert answer == {"run": str(child), "step": 3, "steps": 7, "tokens": 7 * 4 * 64}
    curriculum = json.loads((child / "plan.json").read_text())["curriculum"]
    shapes = [(s["steps"], s["batch_size"], s["seq_len"]) for s in curriculum["segments"]]
    assert shapes == [(3, 4, 64), (4, 2, 128)]
    assert len((child / "metrics.jsonl").read_text().splitlines()) == 3
    assert load_trained(child, None).step == 3


def test_a_run_goes_on_with_the_mixture_of_a_file(run: Path, tmp_path: Path) -> None:
    changed = shutil.copytree(run, tmp_path / "run")
    plan = json.loads((changed / "plan.json").read_text())
    mixture = plan["schedule"]["revisions"][0]["specification"] | {"name": "another"}
    (tmp_path / "mixture.json").write_text(json.dumps(mixture))
    mixed = ("--mixture", str(tmp_path / "mixture.json"), "--at", "3")
    answer = invoke("train", "remix", str(changed), *mixed)
    assert answer == {"run": str(changed), "step": 3, "steps": 12, "tokens": 12 * 4 * 64}
    after = json.loads((changed / "plan.json").read_text())
    assert [leg["step"] for leg in after["legs"]] == [0, 3]
    assert after["schedule"]["revisions"][1]["specification"]["name"] == "another"
    assert after["curriculum"]["decay"] == plan["curriculum"]["decay"]
