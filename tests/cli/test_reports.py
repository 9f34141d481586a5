"""Texts of ``imitate info`` by hand, with all that a report may hold and with as little as it must."""

import json

import h5py
import numpy as np
import pytest

from imitate.cli.reports import bundle, checkpoint, dataset, layout, lerobot, run, shards
from imitate.config.from_data import UNBOUNDED_ACTIONS
from imitate.data.edit.shard import shard_files
from tests.demo_files import episode, make_demo_file, write_demos
from tests.deploy.bundle.bundles import small_bundle


def text(part, report):
    return "\n".join(part.lay_out(report)) + "\n"


BUNDLE = {
    "path": "p.zip", "size_mb": 1.26, "imitate_version": "1.2", "frames": 1, "execution": None,
    "noise": {"a": 0, "b": 0},
}  # fmt: skip
SCHEMA = {"rate_hz": None, "algorithm": "bc", "action_dim": 7, "languages": [], "goals": {}}
SCHEMA["observations"] = {"s": {"shape": []}}


def test_a_bundle():
    assert (
        text(bundle, {**BUNDLE, "schema": SCHEMA})
        == """\
file           p.zip (1.3 MB), a bundle without torch
algorithm      bc
written by     imitate 1.2
control rate   not said
actions        7, one at a time
draws noise    no
sees           1 observation

group         key  shape
observations  s    number
"""
    )
    more = {"frames": 2, "execution": {"size": 8, "execute": 2}, "noise": {"a": 0, "b": 3}}
    known = {
        "rate_hz": 12.5,
        "languages": ["pick", "place"],
        "goals": {"cam": {"shape": [84, 80, 3]}},
    }
    assert (
        text(bundle, {**BUNDLE, **more, "schema": {**SCHEMA, **known}})
        == """\
file           p.zip (1.3 MB), a bundle without torch
algorithm      bc
written by     imitate 1.2
control rate   12.5 Hz
actions        7, chunks of 8, a new one every 2 steps
draws noise    yes
sees           2 observations
instruction    pick
instruction    place

group         key  shape
observations  s    number
goals         cam  84 x 80 x 3
"""
    )


UNKNOWN = {
    "path": "d", "size_mb": 2.04, "demos": 3, "steps": 30, "success": None, "env_name": None, "env_type": None,
    "env_version": None, "robots": None, "control_freq": None, "filter_keys": {}, "actions": None,
}  # fmt: skip
LENGTH = {"length": {"mean": 10.0, "min": 8, "max": 12}}


def entry(key, *shape, dtype="float32", **more):
    return {"key": key, "shape": shape, "dtype": dtype, "demos": 3, **more}


def test_shards():
    keys = [entry("actions", 7), entry("next_obs/s", 2)]
    assert (
        text(shards, {**UNKNOWN, **LENGTH, "shards": 1, "keys": keys})
        == """\
folder         d (1 shard, 2.0 MB)
demos          3, 30 steps
length         10.0 (8 - 12)
success        not said
environment    not said
control rate   not said
filter keys    none

key      one step  type
actions  7         float32
"""
    )
    env = {"env_name": "Lift", "env_type": 1, "env_version": "1.5", "robots": ["Panda", "Sawyer"]}
    more = {"success": {"demos": 2, "of": 3, "by": "success"}, "control_freq": 20.0}
    masks = {"filter_keys": {"train": 2, "valid": 1}, "actions": {"within_1": False}}
    found = {**UNKNOWN, **LENGTH, **env, **more, **masks, "shards": 2, "keys": keys}
    assert (
        text(shards, found)
        == f"""\
folder         d (2 shards, 2.0 MB)
demos          3, 30 steps
length         10.0 (8 - 12)
success        2 of 3 (67 %), by success
environment    Lift (robosuite 1.5 Panda, Sawyer)
control rate   20 Hz
filter keys    train (2), valid (1)

key      one step  type
actions  7         float32

{UNBOUNDED_ACTIONS}
"""
    )
    assert UNBOUNDED_ACTIONS not in text(shards, {**found, "actions": {"within_1": True}})


def test_a_dataset():
    keys = [entry("actions", 7)]
    assert (
        text(dataset, {**UNKNOWN, "length": None, "number_names": {}, "keys": keys})
        == """\
file           d (2.0 MB)
demos          3, 30 steps
success        not said
environment    not said
control rate   not said
filter keys    none

key      one step  type     demos
actions  7         float32  3
"""
    )
    more = {"success": {"demos": 1, "of": 3, "by": "rewards"}, "env_name": "arm", "env_type": 4}
    masks = {"control_freq": 50.0, "filter_keys": {"train": 2}}
    actions = {"low": [-1.5, 0.0], "high": [0.25, 1.0], "within_1": False}
    keys = [
        entry("label", dtype="int64", once=True),
        *(entry(f"{group}/s", 2, 3) for group in ("obs", "next_obs")),
        entry("next_obs/t", 2),
    ]
    found = {**UNKNOWN, **LENGTH, **more, **masks, "actions": actions, "keys": keys}
    assert (
        text(dataset, {**found, "number_names": {"actions": ("x", "y")}})
        == f"""\
file           d (2.0 MB)
demos          3, 30 steps
length         10.0 (8 - 12)
success        1 of 3 (33 %), by rewards
environment    arm (real robot)
control rate   50 Hz
filter keys    train (2)

key         one step                    type     demos
label       number, one value per demo  int64    3
obs/s       2 x 3                       float32  3
next_obs/t  2                           float32  3
next_obs/...   as obs/...

action  lowest  highest
0 (x)   -1.500  +0.250
1 (y)   +0.000  +1.000
{UNBOUNDED_ACTIONS}
"""
    )


@pytest.mark.parametrize(
    ("report", "words"),
    [
        ({"env_name": None}, "not said"),
        ({"env_name": "x"}, "x"),
        ({"env_name": "x", "env_type": 2}, "x (gymnasium)"),
        ({"env_name": "x", "env_type": 3, "robots": "Panda"}, "x (iGibson Panda)"),
        ({"env_name": "x", "env_type": 4, "env_version": "2"}, "x (real robot 2)"),
        ({"env_name": "x", "env_type": 5, "robots": ["a", "b"]}, "x (a, b)"),
    ],
)
def test_an_environment_in_words(report, words):
    none = {"env_type": None, "env_version": None, "robots": None}
    assert layout.environment_words({**none, **report}) == words


def test_values_in_words_and_texts_in_one_line():
    assert [layout.percent(x) for x in (None, 0.125, 1.0)] == ["-", "12 %", "100 %"]
    assert [layout.number(x) for x in (None, 1234.56, 0.5)] == ["-", "1235", "0.5"]
    assert list(layout.table(("a", "b"), [("x\ny", "")])) == ["a     b", "x\\ny"]
    assert list(layout.pairs([("a", "x\r")])) == ["a              x\\r"]


LEROBOT = {
    "path": "l", "version": "v3.0", "size_mb": 3.06, "demos": 1, "steps": 1, "tasks": 2, "robot": None,
    "control_freq": 30,
    "pointer": None, "missing": "", "unusual_names": "",
    "features": [
        {"feature": "action", "key": "actions", "shape": [2], "dtype": "float32", "names": ["a", "b"]},
        {"feature": "n", "key": "obs/n", "shape": [], "dtype": None, "names": []},
    ],
}  # fmt: skip
FEATURES = """
feature  key      one step  type     names
action   actions  2         float32  a, b
n        obs/n    number    None
"""
NEXT = """
to train       imitate config init l --out my.json; imitate train --config my.json
to convert     imitate dataset convert l NEW.hdf5
"""


@pytest.mark.parametrize(
    ("more", "robot", "end"),
    [
        ({}, "not said", NEXT),
        (
            {"robot": "so100", "missing": "no videos"},
            "so100",
            "\nmissing        no videos\n" + NEXT,
        ),
        (
            {"unusual_names": "actions: act"},
            "not said",
            "\nnames          not LeRobot's usual names; read as actions: act\n" + NEXT,
        ),
        ({"pointer": "git lfs", "unusual_names": "x"}, "not said", "\nmissing        git lfs\n"),
    ],
)
def test_a_dataset_of_lerobot(more, robot, end):
    begin = f"""\
folder         l (3.1 MB)
format         LeRobot v3.0
episodes       1, 1 frame
tasks          2
robot          {robot}
control rate   30 Hz
"""
    assert text(lerobot, {**LEROBOT, **more}) == begin + FEATURES + end


def test_a_dataset_of_lerobot_is_described_by_its_info(tmp_path):
    features = {
        "action": {"dtype": "float32", "shape": [2], "names": ["a", "b"]},
        "observation.images.top": {"dtype": "video", "shape": [4, 5, 3], "names": ["h", "w", "c"]},
        "observation.effort": {"dtype": "float32"},
        "timestamp": {"dtype": "float32", "shape": [1]},
    }
    info = {"codebase_version": "v2.1", "fps": 30, "robot_type": "arm", "features": features}
    info |= {"total_episodes": 2, "total_frames": 30, "total_tasks": 1}
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    assert lerobot.describe(tmp_path)["missing"].startswith(
        "there are no tables of episodes in data/"
    )
    (tmp_path / "data").mkdir()
    (tmp_path / "data/0.parquet").touch()
    found = lerobot.describe(tmp_path)
    assert found["missing"].startswith(f"{tmp_path}: cannot be read (KeyError: 'data_path')")
    for odd in ({"fps": None}, {"total_episodes": "x"}, {"chunks_size": 0, "data_path": "x"}):
        (tmp_path / "meta/info.json").write_text(json.dumps(info | odd))
        assert lerobot.describe(tmp_path)["missing"].startswith(f"{tmp_path}: cannot be read (")
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    assert found["size_mb"] == (tmp_path / "meta/info.json").stat().st_size / 1e6
    plain = {k: found[k] for k in ("version", "demos", "steps", "tasks", "control_freq", "robot")}
    assert list(plain.values()) == ["v2.1", 2, 30, 1, 30, "arm"]
    shown = [(f["feature"], f["shape"], f["dtype"], f["names"]) for f in found["features"]]
    assert shown == [
        ("action", [2], "float32", ["a", "b"]),
        ("observation.images.top", [4, 5, 3], "video", []),
        ("observation.effort", [], "float32", []),
    ]


def test_shards_are_described_by_their_index(tmp_path):
    path = make_demo_file(tmp_path / "a.hdf5", num_demos=3, length=(4, 6, 8), obs_dims={"s": 2})
    shard_files([path], tmp_path / "s", 2)
    found = shards.describe(tmp_path / "s")
    files = sorted((tmp_path / "s").glob("*.hdf5"))
    assert found["size_mb"] == sum(file.stat().st_size for file in files) / 1e6
    counts = found["shards"], found["demos"], found["steps"], found["length"]
    assert counts == (2, 3, 18, {"mean": 6.0, "min": 4, "max": 8})
    assert found["actions"]["within_1"] is bool(
        np.abs([found["actions"]["low"], found["actions"]["high"]]).max() <= 1
    )


CHECKPOINT = {
    "path": "r/last.pth", "size_mb": 4.04, "algo": "bc", "variant": "BC", "parameters": 12345, "acting_only": False,
    "epoch": None, "step": None, "env_name": "CartPole-v1", "env_type": 2, "env_version": None, "robots": None,
    "control_freq": None, "action_dim": 2, "action_low": None, "action_high": None, "normalizes_obs": False,
    "normalizes_actions": False, "decision_ms": None, "provenance": {}, "versions": {"torch": "2.1"},
    "environments": ["a"], "rename": {}, "instructions": [], "obs_shapes": {"s": [3]}, "critic_keys": [],
    "changed_settings": {},
}  # fmt: skip


def test_a_checkpoint():
    assert (
        text(checkpoint, CHECKPOINT)
        == """\
file           r/last.pth (4.0 MB)
algorithm      BC
parameters     12,345
trained        the file does not contain the progress (the last)
environment    CartPole-v1 (gymnasium)
control rate   not said
actions        2, not clipped
normalizes     nothing
versions       torch 2.1
git commit     none

observation  shape
s            3

settings that differ from the default  value
"""
    )
    data = {"path": "a.hdf5", "num_demos": 5, "num_steps": 1, "training_demos": 4, "weight": 0.5}
    other = {"path": "b.hdf5", "num_demos": 2, "sha256": "fedcba9876543210"}
    published = {"path": "c.hdf5", "sha256": None}
    datasets = [{**data, "sha256": "0123456789abcdef"}, other, published]
    more = {"path": "m.pth", "acting_only": True, "epoch": 3, "step": 1, "control_freq": 20.0}
    more |= {"action_low": [-1, -0.5], "action_high": [0.5, 2], "decision_ms": 12.34}
    more |= {"normalizes_obs": True, "normalizes_actions": True, "environments": ["a", "b"]}
    more |= {"provenance": {"git_commit": "abc", "datasets": datasets}, "rename": {"x": "y"}}
    more |= {"instructions": ["go"], "obs_shapes": {"s": [3], "q": [4, 5]}, "critic_keys": ["q"]}
    more |= {"changed_settings": {"train.num_epochs": 7}}
    assert (
        text(checkpoint, {**CHECKPOINT, **more})
        == """\
file           m.pth (4.0 MB)
algorithm      BC
parameters     12,345
networks       only those that act: training cannot be resumed
trained        epoch 3, 1 update
environment    CartPole-v1 (gymnasium)
control rate   20 Hz
actions        2, clipped to [-1, 2]
normalizes     obs and actions
decisions      12.3 ms each here, by planning (median of 5)
versions       torch 2.1
git commit     abc
trained on     a.hdf5: 5 demos, 1 step, 4 taken, weight 0.5, sha256 0123456789ab
trained on     b.hdf5: 2 demos, ? steps, 2 taken, weight 1, sha256 fedcba987654
trained on     c.hdf5: ? demos, ? steps, weight 1
environments   a, b
takes          'x' as 'y'
instruction    go

observation  shape
s            3
q            4 x 5, seen only by critics

settings that differ from the default  value
train.num_epochs                       7
"""
    )


def test_a_bundle_is_described_by_its_file(tmp_path):
    path = small_bundle(tmp_path / "p.zip")
    found = bundle.describe(path)
    assert (found["path"], found["size_mb"]) == (str(path), path.stat().st_size / 1e6)
    execution = {key: found["execution"][key] for key in ("size", "execute")}
    assert execution == {"size": 4, "execute": 2} and found["frames"] == 1
    assert found["checks"] > 0 and found["schema"]["action_dim"] == 3


def changed(path, **attrs):
    """Remove ``success`` of the second demo, or set these attributes of it."""
    with h5py.File(path, "r+") as file:
        del file["data/demo_1"].attrs["success"]
        file["data/demo_1"].attrs.update(attrs)
        file["data/demo_0/label"] = np.ones((1, 2))
        file["data/demo_2/label"] = np.ones((1, 2))
        file["data/demo_1/rewards"][-1] = 1.0
    return path


def test_a_dataset_is_described_by_its_arrays(tmp_path):
    obs = {"x": np.zeros((3, 2))}
    actions = np.array([[0.5, -2.0], [0.25, 0.0], [1.5, 1.0]])
    rows = [(3, actions), (3, actions / 2), (1, actions[:1])]
    made = [
        episode(n, {"x": obs["x"][:n]}, actions=values, attrs={"success": True})
        for n, values in rows
    ]
    path = changed(write_demos(tmp_path / "a.hdf5", made))
    found = dataset.describe(path)
    assert found["size_mb"] == path.stat().st_size / 1e6
    assert found["length"] == {"mean": 7 / 3, "min": 1, "max": 3}
    assert found["success"] == {"demos": 3, "of": 3, "by": "rewards"}
    wanted = {"low": [0.125, -2.0], "high": [1.5, 1.0], "within_1": False}
    assert found["actions"] == wanted
    label = [entry for entry in found["keys"] if entry["key"] == "label"]
    one = {"key": "label", "shape": [2], "dtype": "float64", "demos": 1}
    assert label == [{**one, "once": True}, one]
    with h5py.File(path, "r+") as file:
        del file["data/demo_2/actions"]
        file["data/demo_2/actions"] = np.zeros((1, 3))
    assert dataset.describe(path)["actions"] is None


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_actions_of_shards_leave_their_range_on_either_side(tmp_path, sign):
    actions = sign * np.array([[0.5, 2.0], [0.0, 0.25]])
    made = [episode(2, {"x": np.zeros((2, 1))}, actions=actions)] * 2
    shard_files([write_demos(tmp_path / "a.hdf5", made)], tmp_path / "s", 1)
    assert shards.describe(tmp_path / "s")["actions"]["within_1"] is False


def test_an_imported_checkpoint():
    more = {
        "action_low": [0.0],
        "provenance": {"imported_from": "robomimic"},
        "epoch": 2,
        "step": 20,
    }
    lines = text(checkpoint, {**CHECKPOINT, **more}).splitlines()
    assert lines[3] == "trained        epoch 2, 20 updates (the last)"
    assert lines[6] == "actions        2, not clipped"
    assert lines[8:10] == ["format         robomimic's", "read by        torch 2.1"]


RUN = {
    "path": "r", "name": "n", "algo": "bc", "status": "unfinished", "epoch": 1, "num_epochs": 4, "best": None,
    "times": {},
    "kept": [], "curve": [],
}  # fmt: skip
POINT = {
    **{"epoch": 2, "loss": 0.25, "valid_loss": None, "success_rate": None, "mean_return": None},
    **{"env_steps": None, "training_return": None},
}


@pytest.mark.parametrize(
    ("known", "column"),
    [
        ({}, ""),
        ({"success_rate": 0.5, "mean_return": 9.0}, "success"),
        ({"mean_return": 9.0}, "return"),
    ],
)
def test_a_run(known, column):
    times = {"train_wall_s": 12.4, "train_cpu_s": 9.6, "evaluation_wall_s": 3.0}
    first = text(run, RUN).splitlines()
    assert first[:4] == [
        "run            r",
        "name           n (bc)",
        "status         unfinished, epoch 1 of 4",
        "checkpoints    none yet",
    ]
    assert first[4].startswith("to resume      ") and len(first) == 5
    curve = [{**POINT, "epoch": 1}, {**POINT, **known}]
    found = {**RUN, "status": "finished", "times": times, "curve": curve}
    lines = text(run, found).splitlines()
    assert lines[3] == "training       12 s (CPU 10 s), evaluation 3 s"
    value = {"": "", "success": "50 %", "return": "9"}[column]
    nothing = "-" if column else ""
    assert lines[5:] == [
        "",
        f"epoch  loss  valid loss  {column}".rstrip(),
        f"1      0.25  -           {nothing}".rstrip(),
        f"2      0.25  -           {value}".rstrip(),
    ]


def test_an_online_run_shows_its_return_before_the_first_evaluation():
    point = {**POINT, "env_steps": 2500.0, "training_return": -7.25}
    lines = text(run, {**RUN, "curve": [point]}).splitlines()
    assert lines[-2:] == [
        "epoch  env steps  loss  return in training",
        "2      2500       0.25  -7.25",
    ]


def test_kept_checkpoints_of_a_run():
    kept = [
        {"name": "best.pth", "epoch": 5, "reason": "best by success rate: 68 % of 50 episodes"},
        {"name": "last.pth", "epoch": None, "reason": "last"},
    ]
    lines = text(run, {**RUN, "status": "finished", "kept": kept}).splitlines()
    assert lines[3:] == [
        "checkpoints    best.pth: best by success rate (epoch 5, 68 % of 50 episodes)",
        "               last.pth: last (epoch unknown)",
    ]
