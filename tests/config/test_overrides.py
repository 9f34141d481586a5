import pytest

from imitate.config import load_config
from imitate.errors import ConfigError

TOY = {"algo_name": "config_toy"}


def load(*overrides, **sections):
    return load_config({**TOY, **sections}, overrides)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("train.batch_size=256", 256),
        ("train.max_grad_norm=1e-3", 0.001),
        ("train.cuda=false", False),
        ('train.action_keys=["a", "b"]', ("a", "b")),
        ("train.hdf5_filter_key=better", "better"),
        ('train.hdf5_filter_key="better"', "better"),
        ("train.hdf5_filter_key=null", None),
        ("train.hdf5_filter_key=20", "20"),
        ("train.hdf5_filter_key=true", "true"),
        ("experiment.name=2024_1", "2024_1"),
        ("experiment.name=a=b", "a=b"),
        ("experiment.name=12", "12"),
        ("algo.loss=1", "1"),
        ("algo.widths.hidden=3", 3),
        ("experiment.rollout.give_up_after=5", 5),
    ],
)
def test_values(override, value):
    node = load(override)
    for key in override.partition("=")[0].split("."):
        node = node[key]
    assert node == value


def test_absent_objects_are_made_in_free_form_places():
    config = load(
        "experiment.env_meta_update_dict.env_kwargs.controller.kp=[150, null]",
        "algo.widths.kwargs.extra.deep=x",
        "observation.encoder.rgb.core_kwargs.pool_kwargs.num_kp=64",
        "observation.encoder.touch.core_class=TouchCore",
        'observation.modalities.obs.touch=["finger"]',
        "train.action_config.gripper.normalization=min_max",
    )
    assert config.experiment.env_meta_update_dict.env_kwargs.controller.kp == (150, None)
    assert config.algo.widths.kwargs.extra.deep == "x"
    assert config.algo.widths.kwargs.bidirectional is False
    assert config.observation.encoder.rgb.core_kwargs.pool_kwargs.num_kp == 64
    assert config.observation.encoder.touch.core_class == "TouchCore"
    assert config.observation.modalities.obs.touch == ("finger",)
    assert config.train.action_config.gripper.normalization == "min_max"


def test_data_may_be_a_path_and_places_in_a_list():
    assert load("train.data=a.hdf5").train.data[0].path == "a.hdf5"
    config = load("train.data.1.weight=2", train={"data": [{"path": "a"}, {"path": "b"}]})
    assert [entry.weight for entry in config.train.data] == [1.0, 2.0]


def test_the_last_override_wins():
    assert load("train.seed=2", "train.seed=3", train={"seed": 1}).train.seed == 3


def test_an_object_replaces_the_subtree():
    config = load('algo.widths={"hidden": 2}', algo={"widths": {"kwargs": {"x": 1}}})
    assert config.algo.widths.to_dict() == {"hidden": 2, "kwargs": {"bidirectional": False}}


def test_objects_that_are_laid_over_stay_as_they_are():
    kwargs = {"a": 1}
    path = "algo.widths.kwargs"
    config = load().with_overrides({path: kwargs, f"{path}.b": 2})
    assert config.algo.widths.kwargs["b"] == 2 and kwargs == {"a": 1}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.batch_size", "'train.batch_size': wanted key=value, such as train.batch_size=256"),
        ("=3", "'=3': wanted key=value"),
        ("train..seed=3", "'train..seed': wanted a dotted key such as train.batch_size"),
        ("train.bach_size=3", "train.bach_size: unknown key, did you mean 'batch_size'?"),
        ("trian.seed=3", "trian: unknown key, did you mean 'train'?"),
        ("algo.widths.hiden=3", "algo.widths.hiden: unknown key, did you mean 'hidden'?"),
        ("train.batch_size=many", 'train.batch_size: got "many", wanted an integer'),
        ("train.seed.x=1", "train.seed.x: train.seed is 1, which is not an object with keys"),
        (
            "train.data.1.weight=1",
            "1.weight: train.data is a list of 1 items: wanted an index below 1",
        ),
        ("train.data.x=1", "wanted an index below 1, got 'x'"),
    ],
)
def test_what_cannot_be_set_is_told(override, words):
    with pytest.raises(ConfigError) as error:
        load(override, train={"seed": 1, "data": [{"path": "a"}]})
    assert words in str(error.value)
