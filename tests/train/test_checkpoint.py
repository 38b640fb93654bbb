"""Checkpoints are complete and verified, or refused by name."""

import errno
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from marin.errors import MarinError
from marin.train.checkpoint import (
    Checkpoints,
    checkpoint_directory,
    complete_steps,
    read_state,
)


def arrays(devices: int = 4, offset: float = 0.0) -> dict[str, jax.Array]:
    mesh = Mesh(np.array(jax.devices()[:devices]), ("expert",))
    cut, whole = NamedSharding(mesh, P("expert")), NamedSharding(mesh, P())
    draw = np.random.default_rng(0)
    return {
        "step": jax.device_put(np.int32(7), whole),
        "parameters.experts": jax.device_put(draw.normal(size=(8, 4, 4)) + offset, cut),
        "parameters.gain": jax.device_put(draw.normal(size=5).astype(np.float32), whole),
    }


def like(values: dict[str, jax.Array]) -> dict[str, jax.ShapeDtypeStruct]:
    return {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)
        for name, x in values.items()
    }


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Checkpoints of steps 10 and 20."""
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (10, 20):
        checkpoints.save(step, arrays(offset=step), {"cursor": {"step": step}})
    checkpoints.close()
    return tmp_path


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_arrays_come_back_bit_for_bit_on_any_number_of_devices(saved: Path, devices: int) -> None:
    assert read_state(saved, 20)["cursor"] == {"step": 20}
    checkpoints = Checkpoints(saved, keep=2)
    restored = checkpoints.restore(20, like(arrays(devices)))
    for name, value in arrays(offset=20).items():
        np.testing.assert_array_equal(restored[name], value)
        assert restored[name].sharding == arrays(devices)[name].sharding
    some = checkpoints.restore(20, like(arrays(devices)), prefixes=("parameters.",))
    assert set(some) == {"parameters.experts", "parameters.gain"}
    for name, value in some.items():
        np.testing.assert_array_equal(value, restored[name])
    checkpoints.close()


def test_an_older_checkpoint_goes_only_after_a_newer_one_is_complete(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (1, 2, 3):
        checkpoints.save(step, arrays(), {})
        assert complete_steps(tmp_path)[-1:] in ([], [step - 1], [step])
        checkpoints.wait()
        assert complete_steps(tmp_path) == [step]
    checkpoints.close()


def every_file(directory: Path) -> list[Path]:
    return sorted(p for p in directory.rglob("*") if p.is_file() and p.name != "manifest.json")


def test_any_flipped_byte_is_refused_and_the_one_before_offered(saved: Path) -> None:
    directory = checkpoint_directory(saved, 20)
    for path in every_file(directory):
        content = path.read_bytes()
        if not content:
            continue
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with pytest.raises(MarinError, match=r"--at 10") as error:
            read_state(saved, 20)
        assert str(path) in str(error.value)
        assert "\n" not in str(error.value)
        path.write_bytes(content)
    read_state(saved, 20)


@pytest.mark.parametrize("content", ["", "{}", '{"format":'])
def test_a_manifest_that_was_cut_is_refused_and_the_one_before_offered(
    saved: Path, content: str
) -> None:
    (checkpoint_directory(saved, 20) / "manifest.json").write_text(content)
    with pytest.raises(MarinError, match=r"manifest.*damaged, go on from .* with --at 10"):
        read_state(saved, 20)


def test_a_file_in_a_checkpoints_place_is_none(saved: Path) -> None:
    (saved / "step-00000099").write_text("x")
    assert complete_steps(saved) == [10, 20]
    checkpoints = Checkpoints(saved, keep=2)
    checkpoints.sweep(after=20)
    checkpoints.close()


def test_a_full_disk_is_one_whoever_found_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)

    def fail(step: int, state: dict[str, object]) -> None:
        raise ValueError("RESOURCE_EXHAUSTED: Error writing [os_error_code='28']")

    monkeypatch.setattr(checkpoints, "_finish", fail)
    checkpoints.save(1, arrays(), {})
    with pytest.raises(OSError, match="No space left") as found:
        checkpoints.wait()
    assert found.value.errno == errno.ENOSPC
    checkpoints.close()


def test_any_missing_file_is_refused_by_name(saved: Path) -> None:
    for path in every_file(checkpoint_directory(saved, 20)):
        content = path.read_bytes()
        path.unlink()
        with pytest.raises(MarinError, match=f"{path.name}: missing"):
            read_state(saved, 20)
        path.write_bytes(content)


def test_the_state_and_not_the_directory_says_the_step(saved: Path) -> None:
    shutil.copytree(checkpoint_directory(saved, 20), checkpoint_directory(saved, 30))
    with pytest.raises(MarinError, match=r"is of step 20, expected 30.*--at 20"):
        read_state(saved, 30)


def test_a_save_without_manifest_counts_as_absent_and_is_swept(saved: Path) -> None:
    (checkpoint_directory(saved, 20) / "manifest.json").unlink()
    assert complete_steps(saved) == [10]
    checkpoints = Checkpoints(saved, keep=2)
    checkpoints.sweep(after=10)
    assert sorted(os.listdir(saved)) == ["step-00000010"]
    checkpoints.close()


def test_another_model_is_refused_by_the_name_of_its_first_array(saved: Path) -> None:
    checkpoints = Checkpoints(saved, keep=2)
    other = like(arrays())
    other["parameters.bias"] = other["parameters.gain"]
    with pytest.raises(MarinError, match=r"lacks array parameters\.bias"):
        checkpoints.restore(20, other)
    other = like(arrays())
    other["parameters.gain"] = jax.ShapeDtypeStruct(
        (6,), np.float32, sharding=other["step"].sharding
    )
    with pytest.raises(MarinError, match=r"parameters\.gain is float32\[5\].*float32\[6\]"):
        checkpoints.restore(20, other)
    checkpoints.close()


def test_the_error_of_a_background_save_surfaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("marin.train.checkpoint.write_manifest", broken)
    checkpoints = Checkpoints(tmp_path, keep=2)
    checkpoints.save(10, arrays(), {})
    with pytest.raises(OSError, match="no space left"):
        checkpoints.wait()
    assert complete_steps(tmp_path) == []
    checkpoints.close()


def test_a_checkpoint_lists_its_state_beside_the_arrays(saved: Path) -> None:
    state = json.loads((checkpoint_directory(saved, 10) / "state.json").read_text())
    assert state == {"cursor": {"step": 10}, "step": 10}
