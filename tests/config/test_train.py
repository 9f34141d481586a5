import pytest

from imitate.config import load_config
from imitate.errors import ConfigError

TOY = {"algo_name": "config_toy"}


def train(**values):
    return load_config({**TOY, "train": values}).train


def test_data_is_always_a_list_of_entries():
    assert train().data is None
    (entry,) = train(data="a.hdf5").data
    assert entry.to_dict() == {
        "path": "a.hdf5",
        "eval": True,
        "lang": None,
        "key": None,
        "filter_key": None,
        "demo_limit": None,
        "weight": 1.0,
    }
    entries = train(data=[{"path": "a", "demo_limit": 3}, {"path": "b", "lang": "lift"}]).data
    assert [entry.demo_limit for entry in entries] == [3, None]
    assert entries[1].lang == "lift"


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ({}, None),
        ({"hdf5_normalize_obs": False}, None),
        ({"hdf5_normalize_obs": True}, "mean_std"),
        ({"hdf5_normalize_obs": True, "obs_normalization": "mean_std"}, "mean_std"),
        ({"hdf5_normalize_obs": False, "obs_normalization": "min_max"}, "min_max"),
        ({"obs_normalization": "mean_std"}, "mean_std"),
    ],
)
def test_hdf5_normalize_obs_means_mean_std(values, result):
    assert train(**values).obs_normalization == result


@pytest.mark.parametrize(("other", "word"), [("min_max", "'min_max'"), (None, "null")])
def test_contradictory_normalizations_are_refused(other, word):
    with pytest.raises(ConfigError) as error:
        train(hdf5_normalize_obs=True, obs_normalization=other)
    assert str(error.value) == (
        "train: hdf5_normalize_obs true means obs_normalization 'mean_std', "
        f"but obs_normalization is {word}: remove one"
    )


def test_normalization_cannot_be_switched_off_in_silence():
    config = load_config({**TOY, "train": {"hdf5_normalize_obs": True}})
    with pytest.raises(ConfigError, match="remove one"):
        config.with_overrides({"train.obs_normalization": None})
    values = {"train.obs_normalization": None, "train.hdf5_normalize_obs": False}
    assert config.with_overrides(values).train.obs_normalization is None


def test_each_action_key_has_an_entry():
    section = train(action_keys=["pos", "rot"], action_config={"pos": {"normalization": "min_max"}})
    assert section.action_config.keys() == ("pos", "rot")
    assert section.action_config["pos"].normalization == "min_max"
    assert section.action_config["rot"].normalization is None


def test_a_rotation_is_converted_only_from_a_known_format():
    with pytest.raises(ConfigError) as error:
        train(action_config={"rot": {"convert_at_runtime": "rot_euler"}})
    assert str(error.value) == (
        "train.action_config.rot: convert_at_runtime needs format: set format to 'rot_6d'"
    )
    entry = {"format": "rot_6d", "convert_at_runtime": "rot_euler"}
    assert train(action_config={"rot": entry}).action_config["rot"].format == "rot_6d"


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", None])
def test_devices(device):
    assert train(device=device).device == device


@pytest.mark.parametrize("device", ["cuda:", "CPU", "cuda:x", "cpu "])
def test_unknown_devices(device):
    with pytest.raises(ConfigError, match="train.device: got "):
        train(device=device)
