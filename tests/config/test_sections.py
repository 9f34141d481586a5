"""Sections of a configuration and what must agree between them."""

import pickle

import pytest
from pydantic import ValidationError

from imitate.config import OpenSection, OptimizerConfig, Section, load_config
from imitate.config.from_data import action_normalization, num_epochs, rollout_horizon
from imitate.config.optimizer import Networks, adamw, networks
from imitate.config.readiness import check_trainable
from imitate.config.section import merged
from imitate.errors import ConfigError


class Inner(Section):
    size: int = 1
    name: str | None = None


class Outer(Section):
    inner: Inner = Inner(size=5)
    names: tuple[str, ...] = ("a",)
    free: OpenSection = OpenSection(depth=2)


def test_values_are_read_by_attribute_key_and_get():
    outer = Outer()
    assert outer.inner.size == outer["inner"]["size"] == 5
    assert (outer.get("names"), outer.get("nothing", 3)) == (("a",), 3)
    assert "free" in outer and "nothing" not in outer
    assert tuple(outer) == outer.keys() == ("inner", "names", "free")
    assert dict(outer.inner.items()) == {"size": 5, "name": None}
    assert outer.inner.values() == (5, None)
    with pytest.raises(KeyError):
        outer["nothing"]


def test_a_section_is_frozen_to_its_depths():
    outer = Outer.model_validate({"names": ["x", "y"], "free": {"a": [{"b": [1]}]}})
    inner, free = outer.inner, outer.free
    for section, key in ((outer, "names"), (inner, "size"), (free, "a"), (free, "new")):
        with pytest.raises(ValidationError):
            setattr(section, key, 1)
    with pytest.raises(TypeError):
        outer["names"] = ()
    assert (outer.names, outer.free.a[0].b) == (("x", "y"), (1,))


def test_a_partial_object_keeps_the_fields_own_defaults():
    outer = Outer.model_validate({"inner": {"name": "n"}, "free": {"width": 3}})
    assert outer.inner == Inner(size=5, name="n")  # not the class's default, 1
    assert outer.free.to_dict() == {"depth": 2, "width": 3}


class Trained(Section):
    optim_params: Networks = networks("TrainedOptimParams", critic=1e-3, policy=adamw(1e-4, 1e-6))


def test_networks_declares_one_optimizer_per_network():
    given = {"critic": {"start_epoch": 3}, "policy": {"betas": [0.5, 0.9]}}
    params = Trained.model_validate({"optim_params": given}).optim_params
    assert (type(params).__name__, params.keys()) == ("TrainedOptimParams", ("critic", "policy"))
    assert (params.critic.start_epoch, params.critic.learning_rate.initial) == (3, 1e-3)
    assert (params.policy.optimizer_type, params.policy.regularization.L2) == ("adamw", 1e-6)
    assert pickle.loads(pickle.dumps(params)) == params
    for network, section in (
        ("actor", {}),
        ("policy", {"start_epoch": 3}),
    ):  # the latter has no stages
        with pytest.raises(ValidationError, match="extra_forbidden"):
            Trained.model_validate({"optim_params": {network: section}})


def test_to_dict_is_plain_and_a_copy():
    outer = Outer()
    tree = outer.to_dict()
    assert tree == {"inner": {"size": 5, "name": None}, "names": ["a"], "free": {"depth": 2}}
    tree["names"].append("b")
    assert outer.names == ("a",)


@pytest.mark.parametrize(
    "tree",
    [
        *({"inner": value} for value in (None, {"size": "1"}, {"size": True}, {"size": 1.0})),
        *({"names": value} for value in ("abc", [1])),
        *({"free": {"x": value}} for value in (float("nan"), [float("inf")], object())),
        {"extra": 1},
    ],
)
def test_nothing_is_coerced_or_ignored(tree):
    with pytest.raises(ValidationError):
        Outer.model_validate(tree)


def test_free_keys_may_have_the_names_of_methods():
    section = OpenSection.model_validate({"keys": 1, "get": {"copy": 2}})
    assert (section["keys"], section["get"]["copy"]) == (1, 2)
    assert section.to_dict() == {"keys": 1, "get": {"copy": 2}}


def test_a_section_survives_pickling():
    outer = Outer.model_validate({"free": {"a": [1, {"b": None}]}})
    again = pickle.loads(pickle.dumps(outer))
    assert again == outer and again.free.a[1].b is None


def test_an_empty_section_is_false():
    assert OpenSection(a=1) and not OpenSection()


def test_merged_replaces_lists_and_joins_objects():
    below = {"a": {"x": 1, "y": [1, 2]}, "b": 1}
    both = merged(below, {"a": {"y": [3]}, "b": {"c": 1}})
    assert both == {"a": {"x": 1, "y": [3]}, "b": {"c": 1}}
    assert below == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


def test_optimizer_defaults_are_robomimics():
    rate = {"initial": 0.0001, "decay_factor": 0.1, "epoch_schedule": [], "num_cycles": 0.5}
    rate |= {"scheduler_type": "multistep", "warmup_steps": 0, "step_every_batch": True}
    rest = {"optimizer_type": "adam", "betas": [0.9, 0.999], "regularization": {"L2": 0.0}}
    assert OptimizerConfig().to_dict() == {**rest, "learning_rate": rate}


def config(**cluster):
    return load_config({"algo_name": "bc", "cluster": cluster})


@pytest.mark.parametrize("on", ["local", "ray", "ray:10.0.0.1:6379"])
def test_places(on):
    assert config(on=on).cluster.on == on


@pytest.mark.parametrize(
    ("on", "words"),
    [
        ("slurm", "on slurm: unknown value; give local, ray or ray:HOST:PORT"),
        ("ray:host", "unknown value"),
        ("ray:host:port", "unknown value"),
        ("ray://10.0.0.1:10001", "run the command on the cluster: ray job submit"),
    ],
)
def test_what_is_no_place_is_refused(on, words):
    with pytest.raises(ConfigError, match="cluster.on") as caught:
        config(on=on)
    assert words in str(caught.value)


def learning_rate(**values):
    tree = {"algo_name": "config_toy", "algo": {"optimizer": {"learning_rate": values}}}
    return load_config(tree).algo.optimizer.learning_rate


@pytest.mark.parametrize("epochs", [[], [10, 20]])
def test_a_linear_decay_has_one_end(epochs):
    with pytest.raises(ConfigError) as error:
        learning_rate(scheduler_type="linear", epoch_schedule=epochs)
    assert str(error.value) == (
        "algo.optimizer.learning_rate: scheduler_type 'linear' needs exactly one epoch in "
        f"epoch_schedule (the end of the decay), got {epochs}: set it to e.g. [100]"
    )
    assert learning_rate(scheduler_type="linear", epoch_schedule=[100]).epoch_schedule == (100,)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("initial", 0.0), ("initial", "1e-4"), ("decay_factor", -0.1), ("warmup_steps", -1)),
        *(("num_cycles", 0), ("epoch_schedule", [-1]), ("scheduler_type", "step")),
        ("num_train_batches", 3),
    ],
)
def test_impossible_values(key, value):
    with pytest.raises(ConfigError, match=rf"^algo.optimizer.learning_rate\.{key}"):
        learning_rate(**{key: value})


def test_the_horizon_is_twice_a_long_demo():
    assert rollout_horizon([100] * 20) == 200
    assert rollout_horizon(list(range(1, 102))) == 200  # 95 % of the lengths are at most 96: 192
    assert rollout_horizon([3]) == 10


def test_one_very_long_demo_alone_does_not_set_the_horizon_but_fits_in():
    assert rollout_horizon([100] * 99 + [150]) == 200
    assert rollout_horizon([100] * 99 + [1000]) == 1000


@pytest.mark.parametrize(
    ("low", "high", "wanted"),
    [
        ([-1.0, -0.2], [1.0, 0.1], None),
        ([-0.5, 0.0], [0.1, 0.1], None),
        ([-0.1, -0.2], [0.3, 0.1], "min_max"),
        ([-1.5, -0.2], [0.3, 0.1], "min_max"),
        ([-0.2], [40.0], "min_max"),
    ],
)
def test_actions_that_do_not_fill_the_range_of_networks_are_normalized(low, high, wanted):
    assert action_normalization(low, high) == wanted


def test_updates_follow_from_the_samples():
    # 20 * 38400 / 256 = 3000 updates, and 1000 at least.
    cases = ((38400, 100, 30), (38401, 100, 31), (500, 100, 10), (500, 1, 1000))
    for samples, steps, epochs in cases:
        assert num_epochs(samples, batch_size=256, epoch_steps=steps) == epochs


TOY, VALID = {"algo_name": "config_toy"}, "train.hdf5_validation_filter_key"
STOPPING = 'experiment.early_stopping={"enabled": true, "metric": "valid_loss"}'


def test_defaults_can_be_trained():
    check_trainable(load_config(TOY))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["observation.modalities.obs.low_dim=[]"], "observation.modalities.obs: lists no obs"),
        (['observation.modalities.goal.low_dim=["object"]'], "train.goal_mode: is null"),
        (["experiment.validate=true"], f"{VALID}: is null"),
        (["train.hdf5_filter_key=a", f"{VALID}=a"], f"{VALID}: 'a' is also hdf5_filter_key"),
        (["experiment.save.on_best_validation=true"], "experiment.save.on_best_validation: is"),
        ([STOPPING], "'valid_loss' is never measured: set experiment.validate to true"),
        (
            ["experiment.early_stopping.enabled=true", "experiment.rollout.enabled=false"],
            "'success_rate' is never measured: set experiment.rollout.enabled to true",
        ),
    ],
)
def test_settings_that_do_not_work_together(overrides, words):
    with pytest.raises(ConfigError) as error:
        check_trainable(load_config(TOY, overrides))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_the_remedies_work():
    goals = ('observation.modalities.goal.low_dim=["object"]', "train.goal_mode=last")
    validated = ("experiment.validate=true", "train.hdf5_filter_key=train", f"{VALID}=valid")
    saved = ("experiment.save.on_best_validation=true", STOPPING)
    check_trainable(load_config(TOY, [*goals, *validated, *saved]))


def test_every_problem_has_its_line():
    config = load_config(TOY, ["observation.modalities.obs.low_dim=[]", "experiment.validate=true"])
    with pytest.raises(ConfigError) as error:
        check_trainable(config)
    assert len(str(error.value).splitlines()) == 2


def train(**values):
    return load_config({**TOY, "train": values}).train


def test_data_is_always_a_list_of_entries():
    assert train().data is None
    (entry,) = train(data="a.hdf5").data
    unset = dict.fromkeys(("lang", "key", "filter_key", "demo_limit"))
    assert entry.to_dict() == {"path": "a.hdf5", "eval": True, "weight": 1.0, **unset}
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
        f"but obs_normalization is {word}: remove one of the two keys"
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
