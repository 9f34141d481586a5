"""Which environments a training is evaluated in, and under which names."""

import pytest

from imitate import load_config
from imitate.train.environments import environments, file_name, label

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
