import pickle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from imitate.config import Config, load_config
from imitate.errors import ConfigError

TOY = {"algo_name": "config_toy"}


def test_defaults_of_the_shared_sections():
    config = load_config({"algo_name": "config_open"})
    assert config.experiment.name == "test" and config.experiment.validate is False
    assert config.experiment.save.every_n_epochs == 50
    assert config.experiment.rollout.to_dict() == {
        "enabled": True,
        "n": 50,
        "horizon": 400,
        "rate": 50,
        "warmstart": 0,
        "terminate_on_success": True,
        "num_workers": None,
        "background": True,
        "seed": 100000,
        "give_up_after": None,
        "step_timeout_s": 60.0,
    }
    assert (config.train.output_dir, config.train.batch_size) == ("runs", 100)
    assert config.train.num_epochs == 2000
    assert config.train.dataset_keys == ("actions", "rewards", "dones")
    assert config.train.action_config.actions.normalization is None
    assert config.train.precision == "fp32" and config.train.device is None
    assert config.observation.encoder.rgb.core_class == "VisualCore"
    assert config.observation.encoder.scan.core_class == "ScanCore"
    assert config.meta.hp_values == ()


def test_an_algorithms_defaults_lie_below_the_users_values():
    config = load_config({**TOY, "train": {"hdf5_load_next_obs": False}})
    assert config.train.batch_size == 7 and config.train.hdf5_load_next_obs is False
    assert config.algo.optimizer.optimizer_type == "adamw"
    partial = load_config({**TOY, "algo": {"optimizer": {"learning_rate": {"initial": 0.5}}}})
    assert partial.algo.optimizer.optimizer_type == "adamw"
    assert partial.algo.optimizer.learning_rate.initial == 0.5
    assert partial.algo.widths.to_dict() == {"hidden": 16, "kwargs": {"bidirectional": False}}


def test_an_algorithm_without_a_section_takes_any_subtree():
    config = load_config({"algo_name": "config_open", "algo": {"net": {"dims": [1, {"a": None}]}}})
    assert config.algo.net.dims[1].a is None
    assert load_config(config.to_json()) == config


def test_an_algorithm_refuses_combinations_with_other_sections():
    with pytest.raises(ConfigError) as error:
        load_config({**TOY, "algo": {"loss": "sequence"}})
    assert (
        str(error.value)
        == "train.seq_length: is 1, but algo.loss is 'sequence': set it to 2 or more"
    )
    load_config({**TOY, "algo": {"loss": "sequence"}, "train": {"seq_length": 2}})


def test_with_overrides_makes_a_new_checked_object():
    config = load_config({**TOY, "train": {"data": "a.hdf5"}})
    other = config.with_overrides(
        {"train.batch_size": 10, "train.data.0.filter_key": "better", "algo.widths.kwargs.x": [1]}
    )
    assert config.train.batch_size == 7
    assert other.train.batch_size == 10
    assert other.train.data[0].to_dict()["filter_key"] == "better"
    assert other.algo.widths.kwargs.to_dict() == {"bidirectional": False, "x": [1]}
    with pytest.raises(ConfigError, match="train.batch_size: got -1, wanted a number greater"):
        config.with_overrides({"train.batch_size": -1})
    with pytest.raises(ConfigError, match="train.batchsize: unknown key, .* mean 'batch_size'"):
        config.with_overrides({"train.batchsize": 1})
    with pytest.raises(ConfigError, match="algo.gama: unknown key, .* mean 'algo.discount'"):
        load_config({"algo_name": "sac", "algo": {"gama": 0.9}})


def test_a_layer_has_a_width():
    with pytest.raises(ConfigError, match="algo.actor_layer_dims.0: got -1, wanted a number"):
        load_config({"algo_name": "bc", "algo": {"actor_layer_dims": [-1]}})


def test_keys_of_observations_and_goals():
    config = load_config(
        {
            **TOY,
            "observation": {
                "modalities": {"obs": {"low_dim": ["b", "a"]}, "goal": {"low_dim": ["a", "c"]}}
            },
        }
    )
    assert config.all_obs_keys == ("a", "b", "c") and config.use_goals
    assert not load_config(TOY).use_goals


def test_equal_trees_are_equal_objects_wherever_they_were_read(tmp_path):
    config = load_config({**TOY, "train": {"seed": 5}})
    (tmp_path / "c.json").write_text(config.to_json())
    again = load_config(tmp_path / "c.json")
    assert again == config
    assert hash(again) == hash(config)
    assert again != config.with_overrides({"train.seed": 6})
    assert again.folder == tmp_path.resolve()
    assert again.with_overrides({"train.seed": 6}).folder == tmp_path.resolve()


def test_a_config_survives_pickling(tmp_path):
    (tmp_path / "c.json").write_text('{"algo_name": "config_toy"}')
    config = load_config(tmp_path / "c.json")
    again = pickle.loads(pickle.dumps(config))
    assert again == config and again.folder == tmp_path.resolve()


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=3)
optional_positive = st.none() | st.integers(1, 10**6)
trees = st.fixed_dictionaries(
    {"algo_name": st.just("config_toy")},
    optional={
        "experiment": st.fixed_dictionaries(
            {},
            optional={
                "name": st.text(min_size=1, max_size=5).filter(lambda t: t.isprintable()),
                "validate": st.booleans(),
                "save": st.fixed_dictionaries(
                    {},
                    optional={
                        "every_n_epochs": optional_positive,
                        "epochs": st.lists(st.integers(1, 99), max_size=3),
                    },
                ),
                "env_meta_update_dict": objects,
                "additional_envs": st.none() | st.lists(texts, max_size=2),
            },
        ),
        "train": st.fixed_dictionaries(
            {},
            optional={
                "data": st.none()
                | st.just("a.hdf5")
                | st.lists(
                    st.fixed_dictionaries(
                        {"path": st.just("b.hdf5")},
                        optional={"weight": st.floats(0, 9), "demo_limit": optional_positive},
                    ),
                    max_size=2,
                ),
                "max_grad_norm": st.none() | st.floats(1e-3, 1e3),
                "action_keys": st.lists(texts, min_size=1, max_size=3, unique=True),
                "hdf5_normalize_obs": st.booleans(),
                "hdf5_cache_mode": st.sampled_from(["auto", "all", "low_dim", None]),
            },
        ),
        "algo": st.fixed_dictionaries(
            {},
            optional={
                "optimizer": st.fixed_dictionaries(
                    {"learning_rate": st.fixed_dictionaries({"initial": st.floats(1e-9, 1.0)})}
                ),
                "widths": st.fixed_dictionaries({"kwargs": objects}),
            },
        ),
        "observation": st.fixed_dictionaries(
            {
                "encoder": st.dictionaries(
                    st.sampled_from(["rgb", "low_dim", "object"]),
                    st.fixed_dictionaries(
                        {"core_kwargs": objects}, optional={"obs_randomizer_kwargs": objects}
                    ),
                )
            }
        ),
        "meta": st.fixed_dictionaries({"hp_values": st.lists(json_values, max_size=3)}),
    },
)


quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a loaded machine is not a failure


@quick
@given(trees)
def test_a_configuration_survives_being_written_and_read(tree):
    config = load_config(tree)
    again = load_config(config.to_json())
    assert again == config
    assert isinstance(again, Config)
    assert again.to_json() == config.to_json()


@quick
@given(trees)
def test_what_the_user_wrote_is_in_the_result(tree):
    found = load_config(tree).to_dict()
    for section, values in tree.items():
        if section in ("algo_name",):
            assert found[section] == values
            continue
        for key, value in values.items():
            if key in ("data", "encoder"):
                continue  # completed with defaults
            if isinstance(value, dict):
                assert value.keys() <= found[section][key].keys()
            else:
                assert found[section][key] == value
