"""Which environments a training is evaluated in, and under which names."""

import pytest

from imitate import load_config
from imitate.evaluate.environments import (
    environments,
    file_name,
    label,
    laid_over,
    named_env,
    with_env,
)

META = {"env_name": "Toy", "type": 2, "env_kwargs": {}}


@pytest.fixture
def config(demo_file):
    def make(*entries, **experiment):
        data = []
        for number, (kwargs, entry) in enumerate(entries):
            meta = {**META, "env_kwargs": kwargs}
            attrs = {"language": entry.pop("told")} if "told" in entry else None
            path = demo_file(f"{number}.hdf5", num_demos=1, env_meta=meta, seed=number, attrs=attrs)
            data.append({"path": str(path), **entry})
        return load_config({"algo_name": "bc", "train": {"data": data}, "experiment": experiment})

    return make


def test_one_environment_has_no_extra_keys(config):
    assert environments(config(({}, {}), ({}, {"key": "again"}))) == (META,)


def test_entries_without_eval_are_left_out_unless_none_has_it(config):
    one, two = {**META, "env_kwargs": {"a": 1}}, {**META, "env_kwargs": {"a": 2}}
    assert environments(config(({"a": 1}, {"eval": False}), ({"a": 2}, {}))) == (two,)
    off = {"eval": False}
    assert environments(config(({"a": 1}, dict(off)), ({"a": 2}, dict(off)))) == (one,)


def test_names_are_the_keys_or_numbered(config):
    metas = environments(config(({"a": 1}, {"key": "easy"}), ({"a": 2}, {}), ({"a": 3}, {})))
    assert [meta["key"] for meta in metas] == ["easy", "Toy 1", "Toy 2"]
    assert [label(meta) for meta in metas] == ["easy", "Toy 1", "Toy 2"]
    assert label(META) == "Toy"


def test_additional_environments_keep_their_own_names(config):
    metas = environments(config(({}, {"key": "easy"}), additional_envs=["Other"]))
    assert [(m["env_name"], m["key"]) for m in metas] == [("Toy", "Toy"), ("Other", "Other")]


def test_one_evaluation_per_instruction_that_the_policy_knows(config):
    made = config(({}, {"told": "lift"}), ({}, {"told": "push"}), ({}, {"told": "fold"}))
    metas = environments(made, tasks=("lift", "push"))
    assert [meta.get("lang") for meta in metas] == ["lift", "push", None]
    assert [meta["key"] for meta in metas] == ["Toy: lift", "Toy: push", "Toy"]
    assert environments(made) == (META,)


def test_labels_as_names_of_files():
    assert file_name("Toy: lift the red/cube") == "Toy_lift_the_red_cube"


def test_an_older_simulators_environment_is_translated_once(demo_file, caplog):
    old = {
        "env_name": "Lift",
        "env_version": "1.4.1",
        "type": 1,
        "env_kwargs": {"robots": "Panda", "controller_configs": {"type": "OSC_POSE"}},
    }
    path = demo_file("old.hdf5", num_demos=1, env_meta=old)
    tree = {"algo_name": "bc", "train": {"data": str(path)}}
    (meta,) = environments(load_config(tree))
    assert meta["env_version"].startswith("1.5")
    assert meta["env_kwargs"]["controller_configs"]["body_parts"]["right"]["type"] == "OSC_POSE"
    (record,) = caplog.records
    assert "imitate dataset migrate-env" in record.getMessage()
    quiet = {**tree, "experiment": {"rollout": {"enabled": False}}}
    assert environments(load_config(quiet)) == (old,)


def test_the_named_environment_keeps_arguments_of_its_own_simulator_only():
    robot = {"env_name": "arm", "type": 4, "env_kwargs": {"port": "/dev/arm"}}
    lift = {"env_name": "Lift", "type": 1, "env_version": "1.5", "env_kwargs": {"robots": "Panda"}}
    assert named_env("a.b:Reach-v0", robot) == {
        "env_name": "a.b:Reach-v0",
        "type": 2,
        "env_kwargs": {},
    }
    assert named_env("Stack", lift) == {**lift, "env_name": "Stack"}
    assert named_env("Lift", robot) == {"env_name": "Lift", "type": 1, "env_kwargs": {}}
    assert named_env("Pendulum-v1", lift)["type"] == 2
    assert laid_over(robot, {"env_name": "a:B-v0", "type": 2}) == {"env_name": "a:B-v0", "type": 2}
    assert laid_over(lift, {"env_kwargs": {"horizon": 9}})["env_kwargs"] == {
        "robots": "Panda",
        "horizon": 9,
    }
    assert lift["env_kwargs"] == {"robots": "Panda"}


def test_env_goes_before_the_updates_of_the_configuration_and_these_before_the_file(config):
    updated = {"env_name": "CartPole-v1", "type": 2, "env_kwargs": {"sutton_barto_reward": True}}
    named = config(({}, {}), rollout={"enabled": False}, env_meta_update_dict=updated)
    assert environments(named) == (updated,)
    (meta,) = environments(with_env(named, "Pendulum-v1"))
    assert meta == {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


def test_updates_that_name_no_environment_count_beside_env(config):
    kwargs = {"env_kwargs": {"g": 9.0}}
    named = config(({"a": 1}, {}), rollout={"enabled": False}, env_meta_update_dict=kwargs)
    (meta,) = environments(with_env(named, "Pendulum-v1"))
    assert meta == {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {"a": 1, "g": 9.0}}


def test_env_is_where_an_online_training_acts_if_nothing_else_names_one():
    tree = {"algo_name": "sac", "train": {"online": {"enabled": True}}}
    named = with_env(load_config(tree), "Pendulum-v1").train.online.env
    assert named["env_name"] == "Pendulum-v1"
