"""Edits: masks, environments, demos and keys of copies; rescaled actions, which nothing takes for commands."""

import itertools
import json

import h5py
import numpy as np
import pytest

from imitate.collect.recorded import commands
from imitate.config import load_config
from imitate.data import DatasetFile, build_datasets
from imitate.data.edit import edits as module
from imitate.data.edit.edits import (
    add_filter_key,
    delete,
    failures_among,
    normalize_actions,
    rename_keys,
    set_env_args,
    split,
    subset,
    undo,
)
from imitate.data.edit.selection import Selection
from imitate.data.edit.target import Target
from imitate.data.file.action_scale import recorded_scale
from imitate.data.file.hdf5_format import outcomes
from imitate.errors import DatasetError
from tests.calling import call
from tests.demo_files import ENV_META, episode, features, write_demos
from tests.refusals import refused


@pytest.fixture
def path(tmp_path):
    """Eleven demos of one step; demos 0, 2, 4 ... are solved; the mask ``few`` has demos 8 to 10."""
    demos = [episode(1, {"s": np.zeros((1, 1))}, attrs={"success": n % 2 == 0}) for n in range(11)]
    return write_demos(tmp_path / "a.hdf5", demos, filter_keys={"few": [8, 9, 10], "one": [3]})


def demos(*numbers):
    return [f"demo_{number}" for number in numbers]


@pytest.mark.parametrize(
    ("words", "names", "valid"),
    [
        ({"ratio": 0.2}, range(11), 2),
        ({"ratio": 0.25}, range(11), 3),  # 2.75
        ({"ratio": 0.01}, range(11), 1),
        ({"ratio": 0.99, "seed": 5}, range(11), 10),
        ({"ratio": 0.3, "success": True}, range(0, 11, 2), 2),
        ({"ratio": 0.2, "success": False}, range(1, 11, 2), 1),
        ({"ratio": 0.5, "filter_key": "few"}, range(8, 11), 2),  # 1.5 is rounded to an even number
    ],
)
def test_splits(path, words, names, valid):
    order = np.random.default_rng(words.get("seed", 0)).permutation(len(names))
    chosen = sorted(names[i] for i in order[:valid])
    prefix = "few_" if "filter_key" in words else ""
    masks = {
        f"{prefix}train": demos(*(n for n in names if n not in chosen)),
        f"{prefix}valid": demos(*chosen),
    }
    assert split(path, Target(None, path), **words) == masks
    with DatasetFile(path) as file:
        assert file.filter_keys() == {"few": demos(8, 9, 10), "one": demos(3), **masks}


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ({"ratio": 0.0}, "ratio is 0: expected a number between 0 and 1"),
        ({"ratio": 1.0}, "ratio is 1: expected"),
        ({"ratio": 0.5, "filter_key": "one"}, "1 demo cannot be split: two are needed"),
    ],
)
def test_refused_splits(path, words, refusal):
    with refused(f"{path}: {refusal}"):
        split(path, Target(None, path), **words)


def test_masks_are_replaced_only_with_overwrite(path):
    target = Target(None, path)
    assert add_filter_key(path, target, "early", Selection(first=3)) == demos(0, 1, 2)
    add_filter_key(path, target, "early", Selection(first=3))  # equal
    words = (
        "there are filter keys of this name already (early 3 demos), and this would write early 2"
    )
    with refused(f"{path}: {words}"):
        add_filter_key(path, target, "early", Selection(first=2))
    add_filter_key(path, target, "early", Selection(first=2), overwrite=True)
    with DatasetFile(path) as file:
        assert file.filter_keys()["early"] == demos(0, 1)
    split(path, target, ratio=0.2)
    split(path, target, ratio=0.2)
    with refused("already (train 9, valid 2 demos), and this would write train 10, valid 1"):
        split(path, target, ratio=0.1)
    split(path, target, ratio=0.1, overwrite=True)


@pytest.mark.parametrize("name", ["", ".", "a/b"])
def test_names_that_no_filter_key_may_have(path, name):
    with refused(f"'{name}' is not a valid name"):
        add_filter_key(path, Target(None, path), name, Selection())


def test_an_empty_selection_and_links_to_other_files(path, tmp_path):
    with refused("no demo fulfils the conditions: the filter key 'long' would be empty"):
        add_filter_key(path, Target(None, path), "long", Selection(min_length=2))
    assert failures_among(path, demos(0, 1, 3, 4)) == 2
    (tmp_path / "other.hdf5").write_bytes(path.read_bytes())
    with h5py.File(path, "a") as file:
        file["data/link"] = h5py.ExternalLink("other.hdf5", "data/demo_0")
    for change in (
        lambda: add_filter_key(path, Target(None, path), "a", Selection()),
        lambda: set_env_args(path, Target(None, path), {"env_name": "B", "type": 2}, print),
    ):
        with refused("link"):
            change()


def test_the_environment_is_changed_and_nothing_else(path, tmp_path, monkeypatch):
    assert (module.MB, module.PIECE_BYTES) == (10**6, 16 * 10**6)
    monkeypatch.setattr(module, "MB", 1000)
    monkeypatch.setattr(module, "PIECE_BYTES", 3000)
    seen, out = [], tmp_path / "b.hdf5"
    size, meta = path.stat().st_size, {"env_name": "B", "type": 2, "env_kwargs": {}}
    put = set_env_args(path, Target(out), meta, lambda *mb: seen.append(mb))
    assert put == ENV_META
    ends = [min(3000 * n, size) // 1000 for n in range(1, 1 + -(-size // 3000))]
    assert seen == [(end, size // 1000) for end in ends]
    with DatasetFile(out) as file, DatasetFile(path) as old:
        assert file.env_meta == meta and old.env_meta == ENV_META
        assert file.filter_keys() == old.filter_keys()
    with h5py.File(out) as file:
        assert file["data"].attrs["env_args"].startswith('{\n    "env_name": "B"')
    for key in ("env_name", "type"):
        with refused(f"env_args need '{key}': give it with --env or --type"):
            set_env_args(path, Target(None, path), {**meta, key: None}, print)
    set_env_args(path, Target(None, path), {**meta, "type": 0}, print)


@pytest.mark.parametrize(
    ("success", "rewards", "said"),
    [
        ((True, False), ([0, 0], [1, 0]), [True, False]),
        ((None, None), ([0, 1, 0], [0, 0]), [True, False]),
        ((None, False), ([0, 1, 0], [0, 1]), [True, False]),
        ((None, None), ([0, 0], [0, 0]), [None, None]),  # nothing was recorded
        ((None, None), ([0, 0.5], [0, 1]), [None, None]),  # rewards of another kind
        ((None, True), ([0, 2], [0, 1]), [None, True]),
        ((None, None), ([1], None), [None, None]),
    ],
)
def test_outcomes(tmp_path, success, rewards, said):
    parts = []
    for word, values in zip(success, rewards, strict=True):
        length = 1 if values is None else len(values)
        more = {} if values is None else {"rewards": values}
        attrs = {} if word is None else {"success": word}
        parts.append(episode(length, {"s": np.zeros((length, 1))}, attrs=attrs, **more))
    path = write_demos(tmp_path / "a.hdf5", parts)
    if rewards[1] is None:
        with h5py.File(path, "a") as file:
            del file["data/demo_1/rewards"]
    with DatasetFile(path) as file:
        assert list(outcomes(file, file.demos()).values()) == said


# ---- copies with other demos and keys ------------------------------------------------------------


@pytest.fixture
def named(tmp_path):
    """Two demos with obs and next_obs of s and t, an array grip, and names of the numbers of s and of the actions."""
    obs = {"s": np.zeros((1, 1)), "t": np.ones((1, 1))}
    made = [episode(1, obs, 1, next_obs=obs, steps={"grip": np.full(1, 0.5)})] * 2
    path = write_demos(tmp_path / "named.hdf5", made)
    with h5py.File(path, "a") as file:
        names = {"obs/s": ["x"], "actions": ["y"]}
        file["data"].attrs["features"] = features(**names)
    return path


def keys_of(path):
    with DatasetFile(path) as file:
        entries = json.loads(file.file_attrs.get("features", "{}"))
        return set(file.keys(file.demos()[0])), {key: entries[key]["names"] for key in entries}


@pytest.mark.parametrize(
    ("names", "renamed", "entries"),
    [
        ({"obs/s": "obs/u"}, {"obs/s": "obs/u", "next_obs/s": "next_obs/u"}, {"obs/u": ["x"], "actions": ["y"]}),
        (
            {"obs/s": "obs/u", "next_obs/s": "later"}, {"obs/s": "obs/u", "next_obs/s": "later"},
            {"obs/u": ["x"], "actions": ["y"]},
        ),
        ({"obs/s": "u"}, {"obs/s": "u"}, {"u": ["x"], "actions": ["y"]}),
        ({"grip": "obs/grip"}, {"grip": "obs/grip"}, {"obs/s": ["x"], "actions": ["y"]}),
        ({"actions": "old", "grip": "actions"}, {"actions": "old", "grip": "actions"}, {"obs/s": ["x"]}),
    ],
)  # fmt: skip
def test_keys_are_renamed(named, tmp_path, names, renamed, entries):
    before, _ = keys_of(named)
    out, seen = tmp_path / "out.hdf5", []
    assert rename_keys(named, Target(out), names, lambda *at: seen.append(at)) == renamed
    keys, found = keys_of(out)
    assert keys == before - set(renamed) | set(renamed.values()) and found == entries
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"obs": "seen"}, "'obs' is a group: name one array in it"),
        ({"obs/s": "obs/"}, "'obs/' is not the name of an array: expected a name such as 'obs/object'"),
        ({"obs/s": "a//b"}, "'a//b' is not the name"),
        ({"obs/s": "obs/t"}, "'obs/t' is taken: choose another name for 'obs/s'"),
        ({"obs/s": "obs"}, "'obs' is taken"),
        ({"obs/s": "grip/s"}, "'grip/s' is taken"),
        ({"obs/s": "u", "obs/t": "u"}, "'u' is taken"),
        ({"actions": "old"}, "'actions' would be missing: also name the array that replaces it"),
        ({"obs/x": "obs/y"}, "no demo has 'obs/x'; did you mean"),
    ],
)  # fmt: skip
def test_names_that_no_array_may_get(named, tmp_path, names, words):
    with refused(f"{named}: {words}"):
        rename_keys(named, Target(tmp_path / "out.hdf5"), names)


def test_parts_of_a_file(path, tmp_path):
    out, seen = tmp_path / "out.hdf5", []
    target = Target(out, overwrite=True)
    assert subset(path, target, Selection(first=2), lambda *at: seen.append(at)) == demos(0, 1)
    assert seen == [(1, 2), (2, 2)]
    with DatasetFile(out) as file:
        assert file.demos() == demos(0, 1) and file.filter_keys() == {}
    with refused(f"{path}: no demo fulfils the conditions: nothing is written"):
        subset(path, target, Selection(min_length=2))
    delete(path, target, demos=["demo_1-demo_7"], on_demo=lambda *at: seen.append(at))
    assert seen[2:] == [(n, 4) for n in (1, 2, 3, 4)]
    with DatasetFile(out) as file:
        assert file.demos() == demos(0, 8, 9, 10)
    delete(path, target, keys=["obs"])
    with DatasetFile(out) as file:
        assert len(file.demos()) == 11 and not any(
            key.startswith("obs") for key in file.keys("demo_0")
        )
    for how, words in (
        ({}, "nothing to delete: name demos or keys"),
        (
            {"keys": ["actions"]},
            "'actions' cannot be deleted, because each demo needs them: rename them instead",
        ),
        ({"demos": ["demo_11"]}, "there is no demo 'demo_11'"),
        ({"keys": ["ob"]}, "no demo has 'ob'"),
    ):
        with refused(f"{path}: {words}"):
            delete(path, target, **how)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_rescaled_actions_by_default(tmp_path):
    parts = [episode(3, {"s": np.zeros((3, 1))}, np.array([[0.0], [2.0], [4.0]]))]
    path = write_demos(tmp_path / "a.hdf5", parts)
    out, back = tmp_path / "out.hdf5", tmp_path / "back.hdf5"
    scale = normalize_actions(path, Target(out))
    assert (scale.offset.tolist(), scale.scale.tolist(), scale.mode) == ([2], [2], "min_max")
    assert actions_of(out, "demo_0").ravel().tolist() == [-1, 0, 1]
    assert undo(out, Target(back)).offset.tolist() == [2]
    assert actions_of(back, "demo_0").ravel().tolist() == [0, 2, 4]
    with refused(
        f"{out}: its actions are rescaled already: restore the original actions with --undo first"
    ):
        normalize_actions(out, Target(tmp_path / "more.hdf5"))
    with refused(f"{back}: its actions are not rescaled: there is nothing to undo"):
        undo(back, Target(tmp_path / "more.hdf5"))
    for mode, value in itertools.product(("min_max", "gaussian"), (np.inf, -np.inf, np.nan)):
        parts = [
            episode(1, {"s": np.zeros((1, 1))}, np.array([[0.5, number]])) for number in (0, 1)
        ]
        write_demos(path, parts)
        with h5py.File(path, "a") as file:
            file["data/demo_0/actions"][0, 1] = value
        with refused(f"{path}: 'actions' have NaN or inf: leave those demos out with"):
            normalize_actions(path, Target(tmp_path / "more.hdf5"), mode=mode)


def run(verb, *words, code=0):
    return call(f"dataset {verb}", *words, code=code).output


@pytest.fixture
def file(demo_file):
    """Two demos, three dimensions: 0 to 4; always 0.3; -0.5 to 0.5."""
    path = demo_file(num_demos=2, length=5, action_dim=3)
    with h5py.File(path, "r+") as opened:
        for demo in opened["data"].values():
            demo["actions"][:] = np.stack(
                [np.arange(5.0), np.full(5, 0.3), np.linspace(-0.5, 0.5, 5)], axis=1
            )
    return path


def actions_of(path, demo="demo_1"):
    with h5py.File(path) as opened:
        return opened[f"data/{demo}/actions"][()]


@pytest.mark.parametrize(
    ("mode", "wanted"),
    [
        ("min_max", [[-1, -0.5, 0, 0.5, 1], [0] * 5, [-1, -0.5, 0, 0.5, 1]]),
        ("gaussian", [np.arange(-2, 3) / 2**0.5, [0] * 5, np.arange(-2, 3) / 2**0.5]),
    ],
)
def test_there_and_back(file, tmp_path, mode, wanted):
    out, back = tmp_path / "out.hdf5", tmp_path / "back.hdf5"
    before = file.read_bytes()
    run("normalize-actions", file, "--mode", mode, "-o", out)
    assert file.read_bytes() == before
    np.testing.assert_allclose(actions_of(out), np.transpose(wanted), atol=1e-6)
    with DatasetFile(out) as opened:
        scale = recorded_scale(opened)
        np.testing.assert_allclose(scale.offset, [2, 0.3, 0], atol=1e-6)
        assert scale.scale[1] == 1, "a constant is shifted, never scaled"
        assert scale.mode == mode
        np.testing.assert_allclose(commands(opened, "demo_1"), actions_of(file), atol=1e-6)
    run("normalize-actions", out, "--undo", "-o", back)
    np.testing.assert_allclose(actions_of(back), actions_of(file), atol=1e-6)
    assert actions_of(back).dtype == actions_of(file).dtype
    with h5py.File(file) as old, h5py.File(back) as new:
        assert dict(new["data"].attrs) == dict(old["data"].attrs)


def test_training_refuses_them(file, tmp_path):
    out = tmp_path / "out.hdf5"
    run("normalize-actions", file, "-o", out)
    tree = {
        "algo_name": "bc",
        "train": {"data": str(out)},
        "observation": {"modalities": {"obs": {"low_dim": ["object"]}}},
    }
    with pytest.raises(DatasetError, match="normalize-actions .*out.hdf5 --undo") as caught:
        build_datasets(load_config(tree))
    assert "train.action_config.actions.normalization=min_max" in str(caught.value)
    assert "\n" not in str(caught.value)
    tree["train"]["data"] = str(file)
    tree["train"]["action_config"] = {"actions": {"normalization": "min_max"}}
    build_datasets(load_config(tree))


@pytest.mark.parametrize("mode", ["min_max", "gaussian"])
def test_the_doctor_knows_them_and_brings_them_back(file, tmp_path, mode):
    out, back = tmp_path / "out.hdf5", tmp_path / "back.hdf5"
    run("normalize-actions", file, "--mode", mode, "-o", out)
    findings = call.json("dataset doctor", out, code=None)["findings"]
    codes = [finding["code"] for finding in findings]
    assert "rescaled_actions" in codes
    assert "action_range" not in codes, "to clip them would spoil them"
    run("doctor --fix --only rescaled_actions", out, "-o", back, code=None)
    np.testing.assert_allclose(actions_of(back), actions_of(file), atol=1e-6)


def test_merge_refuses_two_scales(file, tmp_path):
    out, both = tmp_path / "out.hdf5", tmp_path / "both.hdf5"
    run("normalize-actions", file, "-o", out)
    told = run("merge", file, out, "-o", both, code=2)
    assert "--undo" in told and told.count("\n") == 1
    run("merge", out, out, "-o", both)
    with DatasetFile(both) as opened:
        assert recorded_scale(opened).mode == "min_max"


def test_errors_are_one_line(file, tmp_path):
    out = tmp_path / "out.hdf5"
    undo = "normalize-actions --undo"
    assert "nothing to undo" in run(undo, file, "-o", out, code=2)
    run("normalize-actions", file, "-o", out)
    again = tmp_path / "again.hdf5"
    assert "already" in run("normalize-actions", out, "-o", again, code=2)
    with h5py.File(file, "r+") as opened:
        opened["data/demo_0/actions"][2, 1] = np.nan
    told = run("normalize-actions", file, "-o", again, code=2)
    assert "NaN" in told and told.count("\n") == 1
    with h5py.File(out, "r+") as opened:
        del opened["data"].attrs["action_scale"]
    assert "two lists" in run(undo, out, "-o", again, code=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["demos.hdf5", "out.hdf5"]
