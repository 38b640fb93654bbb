"""A model as safetensors with a `config.json`, spelled as Hugging Face spells its models.

Linear weights are [out, in] and convolutions [channels, 1, taps] with the newest position last, as
PyTorch reads them; layers and experts are tensors of their own. Values are the float32 master
weights, so a round trip is exact. `model.safetensors.index.json` names the file of each tensor:
one for each layer, and one for the rest.
"""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh
from numpy.typing import NDArray

from marin.engine import check_output_root, make_folder
from marin.errors import MALFORMED, MarinError
from marin.model import safetensors
from marin.model.config import HeroConfig
from marin.model.create import abstract
from marin.model.hero import Hero
from marin.model.sharding import parameter_shardings, path_of

_Array = NDArray[Any]

# Ours by path within a layer or the model: theirs, and how the array is laid out there.
_LINEAR, _PLAIN, _CONV = "linear", "plain", "conv"
_NORM = {
    "norm/gain": ("weight", _PLAIN),
    "down": ("gate.down_proj.weight", _LINEAR),
    "up": ("gate.up_proj.weight", _LINEAR),
}
_SWIGLU = {name: (f"{name}_proj.weight", _LINEAR) for name in ("gate", "up", "down")}
_LAYER: dict[str, tuple[str, str]] = {
    "attention/query": ("self_attn.q_proj.weight", _LINEAR),
    "attention/key": ("self_attn.k_proj.weight", _LINEAR),
    "attention/value": ("self_attn.v_proj.weight", _LINEAR),
    "attention/output": ("self_attn.o_proj.weight", _LINEAR),
    "attention/gate": ("self_attn.head_gate.weight", _LINEAR),
    "attention/query_norm/gain": ("self_attn.q_norm.weight", _PLAIN),
    "attention/key_norm/gain": ("self_attn.k_norm.weight", _PLAIN),
    "attention/key_conv/weight": ("self_attn.k_conv.weight", _CONV),
    "attention/output_conv/weight": ("self_attn.o_conv.weight", _CONV),
    "moe/router/weight": ("mlp.gate.weight", _LINEAR),
    "moe/latent_down": ("mlp.latent_down_proj.weight", _LINEAR),
    "moe/latent_norm/gain": ("mlp.latent_norm.weight", _PLAIN),
    "moe/latent_up": ("mlp.latent_up_proj.weight", _LINEAR),
    "moe/output_conv/weight": ("mlp.conv.weight", _CONV),
    **{f"attention_norm/{k}": (f"input_layernorm.{v}", t) for k, (v, t) in _NORM.items()},
    **{f"moe_norm/{k}": (f"post_attention_layernorm.{v}", t) for k, (v, t) in _NORM.items()},
}
_STACKS = {
    f"moe/{ours}/{k}": (f"mlp.{theirs}", v, t)
    for ours, theirs in (("experts", "experts"), ("shared", "shared_experts"))
    for k, (v, t) in _SWIGLU.items()
}
_MODEL: dict[str, tuple[str, str]] = {
    "embedding": ("model.embed_tokens.weight", _PLAIN),
    "readout": ("lm_head.weight", _PLAIN),
    **{f"embedding_norm/{k}": (f"model.embed_norm.{v}", t) for k, (v, t) in _NORM.items()},
    **{f"final_norm/{k}": (f"model.norm.{v}", t) for k, (v, t) in _NORM.items()},
}
_BIAS = "mlp.gate.e_score_correction_bias"
_HF_KEYS = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_local": "num_key_value_heads",
    "kv_global": "num_global_key_value_heads",
    "latent": "moe_latent_size",
    "expert_width": "moe_intermediate_size",
    "experts": "n_routed_experts",
    "top_k": "num_experts_per_tok",
    "shared_experts": "n_shared_experts",
    "vocab": "vocab_size",
    "window": "sliding_window",
    "norm_epsilon": "rms_norm_eps",
    "combine_sum": "routed_scaling_factor",
}
_INDEX = "model.safetensors.index.json"


def export_model(model: Hero, directory: Path) -> None:
    """Writes `config.json`, the index and the tensors into a new or empty directory."""
    check_export_directory(directory)
    make_folder(directory)
    files: dict[str, str] = {}
    size = 0
    for name, tensors in _files(model):
        safetensors.write(directory / name, tensors, {"format": "np"})
        files |= dict.fromkeys(tensors, name)
        size += sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (directory / _INDEX).write_text(json.dumps(index, indent=1))
    (directory / "config.json").write_text(json.dumps(_hf_config(model.config), indent=1))


def check_export_directory(directory: Path) -> None:
    """Raises `MarinError` unless a model may be exported into `directory`."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise MarinError(f"{directory}: not an empty folder: name another to export into")
    check_output_root(directory)


def import_model(directory: Path, mesh: Mesh) -> Hero:
    """The exported model, laid out over a mesh. `MarinError` names what is missing or misshapen."""
    config = _read_config(directory / "config.json")
    try:
        index = json.loads((directory / _INDEX).read_text())
        names = sorted({str(name) for name in index["weight_map"].values()})
    except (OSError, *MALFORMED) as error:
        raise MarinError(f"{directory / _INDEX}: not a readable index ({error})") from None
    found: dict[str, _Array] = {}
    for name in names:
        found |= safetensors.read(directory / name)
    graph, shapes = nnx.split(abstract(config))
    shardings = parameter_shardings(shapes, mesh)

    def load(keys: Any, leaf: Any, sharding: Any) -> jax.Array:
        path = path_of(keys)
        array = _ours(path, config, found, directory)
        if array.shape != leaf.shape:
            raise MarinError(f"{directory}: {path} is {array.shape}, expected {leaf.shape}")
        placed: jax.Array = jax.device_put(array, sharding)
        return placed

    return nnx.merge(graph, jax.tree_util.tree_map_with_path(load, shapes, shardings))


def _files(model: Hero) -> Iterator[tuple[str, dict[str, _Array]]]:
    """Files with the tensors of one layer each, then one with those of no layer."""
    state = nnx.state(model)
    ours = {path_of(k): x for k, x in jax.tree_util.tree_leaves_with_path(state)}
    for n in range(model.config.layers):
        prefix = f"model.layers.{n}"
        tensors = {f"{prefix}.{_BIAS}": np.asarray(ours["router_bias"][n])}
        for path, (theirs, layout) in _LAYER.items():
            tensors[f"{prefix}.{theirs}"] = _theirs(ours[f"layers/{path}"][n], layout)
        for path, (stack, theirs, layout) in _STACKS.items():
            for e, matrix in enumerate(np.asarray(ours[f"layers/{path}"][n])):
                tensors[f"{prefix}.{stack}.{e}.{theirs}"] = _theirs(matrix, layout)
        yield f"model-layer-{n:05d}.safetensors", tensors
    rest = {theirs: _theirs(ours[path], layout) for path, (theirs, layout) in _MODEL.items()}
    yield "model-rest.safetensors", rest


def _theirs(array: Any, layout: str) -> _Array:
    array = np.asarray(array)
    if layout == _LINEAR:
        return np.ascontiguousarray(array.T)
    return np.ascontiguousarray(array[::-1].T[:, None]) if layout == _CONV else array


def _ours(path: str, config: HeroConfig, found: dict[str, _Array], directory: Path) -> _Array:
    def one(name: str, layout: str) -> _Array:
        if name not in found:
            raise MarinError(f"{directory}: no tensor {name}: expected it of this config.json")
        array = found[name]
        if layout == _LINEAR:
            return array.T
        return array[:, 0].T[::-1] if layout == _CONV else array

    if path in _MODEL:
        return one(*_MODEL[path])
    layers = [f"model.layers.{n}" for n in range(config.layers)]
    if path == "router_bias":
        return np.stack([one(f"{layer}.{_BIAS}", _PLAIN) for layer in layers])
    inner = path.removeprefix("layers/")
    if inner in _LAYER:
        theirs, layout = _LAYER[inner]
        return np.stack([one(f"{layer}.{theirs}", layout) for layer in layers])
    stack, theirs, layout = _STACKS[inner]
    count = config.experts if "/experts/" in inner else config.shared_experts
    return np.stack(
        [
            np.stack([one(f"{layer}.{stack}.{e}.{theirs}", layout) for e in range(count)])
            for layer in layers
        ]
    )


def _hf_config(config: HeroConfig) -> dict[str, Any]:
    kinds = ["full_attention" if g else "sliding_attention" for g in config.global_layers]
    return {
        "architectures": ["HeroForCausalLM"],
        "model_type": "hero",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "partial_rotary_factor": 0.5,
        "layer_types": kinds,
        **{_HF_KEYS.get(k, k): v for k, v in dataclasses.asdict(config).items()},
    }


def _read_config(path: Path) -> HeroConfig:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise MarinError(f"{path}: not a readable configuration ({error})") from None
    if not isinstance(values, dict):
        raise MarinError(f"{path}: no JSON object; expected the configuration of a model")
    if values.get("model_type") != "hero":
        raise MarinError(f"{path}: model_type is {values.get('model_type')!r}, expected 'hero'")
    known = [field.name for field in dataclasses.fields(HeroConfig)]
    spelled = {name: _HF_KEYS.get(name, name) for name in known}
    return HeroConfig.from_dict({k: values[v] for k, v in spelled.items() if v in values})
