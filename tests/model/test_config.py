import dataclasses

import pytest

from marin.dispatch import Ragged, Ring, Transport
from marin.errors import MarinError
from marin.model import PRESETS, HeroConfig, preset


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"hidden": 0}, "hidden = 0"),
        ({"layers": 2.5}, "layers = 2.5"),
        ({"kv_local": 3}, "kv_local = 3"),
        ({"kv_local": 1, "kv_global": 2}, "kv_global = 2"),
        ({"top_k": 8}, "top_k = 8"),
        ({"head_dim": 6}, "head_dim = 6"),
        ({"z_loss": -1.0}, "z_loss = -1.0"),
        ({"z_loss": float("nan")}, "z_loss = nan"),
        ({"remat": "some"}, "remat = 'some'"),
        ({"attention": "flash"}, "attention = 'flash'"),
        ({"transport": "pigeon"}, "pigeon"),
        ({"waves": 0}, "waves"),
        ({"rope_theta": 0.0}, "rope_theta = 0.0"),
    ],
)
def test_a_wrong_value_is_one_line_that_names_it(change: dict, named: str) -> None:
    with pytest.raises(MarinError) as caught:
        dataclasses.replace(preset("tiny"), **change)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "made"), [("ring", Ring()), ("ragged", Ragged())])
def test_settings_of_the_pooled_wave_survive_another_transport(name: str, made: Transport) -> None:
    wave = dataclasses.replace(preset("tiny"), stripe=True, waves=2, receiver_capacity=1.5)
    other = dataclasses.replace(wave, transport=name)
    assert other.make_transport() == made
    assert dataclasses.replace(other, transport="pooled_wave") == wave
    with pytest.raises(MarinError, match="policy is 'luck'"):
        dataclasses.replace(other, drop_policy="luck")


def test_a_configuration_goes_through_a_dictionary_and_refuses_unknown_and_missing_names() -> None:
    for rung in PRESETS.values():
        assert HeroConfig.from_dict(dataclasses.asdict(rung.config)) == rung.config
    with pytest.raises(MarinError, match="hiden"):
        HeroConfig.from_dict({"hiden": 3})
    with pytest.raises(MarinError, match="hidden"):
        HeroConfig.from_dict({"layers": 3})
    with pytest.raises(MarinError, match="d768"):
        preset("d7")


def test_every_fourth_layer_and_the_last_are_global() -> None:
    flags = preset("d2048").global_layers
    assert [i + 1 for i, flag in enumerate(flags) if flag] == [4, 8, 12, 16, 20, 22]
    assert sum(preset("d6144").global_layers) == 12
