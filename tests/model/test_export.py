import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from marin.errors import MarinError
from marin.model import make_mesh
from marin.model.export import export_model, import_model


@pytest.fixture(scope="module")
def exported(one_device: Any, random_bias: Any, tmp_path_factory: Any) -> tuple[Any, Path]:
    model = one_device.merge(one_device.params, random_bias)
    directory = tmp_path_factory.mktemp("export") / "model"
    export_model(model, directory)
    return model, directory


def test_a_round_trip_is_exact_on_another_mesh(exported: tuple[Any, Path]) -> None:
    model, directory = exported
    again = import_model(directory, make_mesh(expert=4))
    assert again.config == model.config
    for ours, theirs in zip(jax.tree.leaves(model), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_files_are_read_by_the_safetensors_library_in_its_spelling(
    exported: tuple[Any, Path],
) -> None:
    model, directory = exported
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    tensors = load_file(directory / index["model.layers.1.mlp.experts.3.down_proj.weight"])
    np.testing.assert_array_equal(
        tensors["model.layers.1.mlp.experts.3.down_proj.weight"],
        np.asarray(model.layers.moe.experts.down[...])[1, 3].T,
    )
    assert tensors["model.layers.1.self_attn.k_conv.weight"].shape == (32, 1, 4)
    config = json.loads((directory / "config.json").read_text())
    assert config["hidden_size"] == model.config.hidden
    assert config["layer_types"][-1] == "full_attention"


def test_a_damaged_export_is_one_line(exported: tuple[Any, Path], tmp_path: Path) -> None:
    model, directory = exported
    with pytest.raises(MarinError, match="not an empty folder"):
        export_model(model, directory)
    with pytest.raises(MarinError, match=r"config\.json"):
        import_model(tmp_path, make_mesh())
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    layer = tmp_path / "model-layer-00002.safetensors"
    layer.write_bytes(layer.read_bytes()[:-8])
    with pytest.raises(MarinError, match="00002"):
        import_model(tmp_path, make_mesh())
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"hero"', '"llama"'))
    with pytest.raises(MarinError, match="llama"):
        import_model(tmp_path, make_mesh())
