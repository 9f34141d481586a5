import io
import json
from pathlib import Path
from types import SimpleNamespace as Words

import h5py
import pytest

from imitate.config import load_config
from imitate.data import build_datasets
from imitate.errors import EnvError
from imitate.policy.checkpoint import control_freq_of
from imitate.policy.loading import policy_from_checkpoint
from imitate.train.setup import resolve
from imitate.train.trainer import train
from imitate.train.training_data import FileShare, TrainingData, choice_warnings, share_of_shards
from tests.refusals import refused

from .conftest import config_dict, env_meta, resume, write_demos

pytestmark = pytest.mark.usefixtures("importable_env")


@pytest.fixture
def start(tmp_path):
    """Train one epoch; the result, and the lines that were said."""

    def go(path, name="bc", **sections):
        sections["train"] = {"num_epochs": 1, **sections.get("train", {})}
        tree, stream = {**config_dict(path, **sections), "algo_name": name}, io.StringIO()
        tree["algo"] = tree["algo"] if name == "bc" else {}
        result = train(tree, output_dir=tmp_path / "runs", stream=stream)
        return result, stream.getvalue().splitlines()

    return go


def line_of(lines):
    (line,) = [line for line in lines if line.startswith("training data: ")]
    return line


def warnings_of(lines):
    return [line for line in lines if line.startswith("warning: ")]


def fail_some(path, *names):
    with h5py.File(path, "r+") as file:
        for demo in file["data"].values():
            demo.attrs["success"] = demo.name.rpartition("/")[2] not in names


def entry_of(result):
    """Data that the run's configuration names."""
    return json.loads((result.run_dir / "config.json").read_text())["train"]["data"][0]


def test_one_line_says_what_is_trained_on_without_held_out_demos(start, demos):
    result, lines = start(demos)
    assert line_of(lines) == (
        "training data: demos.hdf5: 10 of 12 demos (filter key 'train'), 150 steps; "
        "observations goal 2, pos 2; network 114 weights"
    )
    found = json.loads((result.run_dir / "results.json").read_text())["training_data"]
    (file,) = found["files"]
    assert (file["demos"], file["of"], file["filter_key"]) == (10, 12, "train")
    assert found["observations"] == {"goal": [2], "pos": [2]}
    assert found["weights"] == 114
    assert result.results["datasets"][0]["training_demos"] == 10
    assert warnings_of(lines) == []
    assert entry_of(result)["filter_key"] == "train"


def test_all_demos_on_request(start, demos):
    result, lines = start(demos, train={"hdf5_filter_key": "all"})
    assert result.results["datasets"][0]["training_demos"] == 12
    words = "12 of 12 demos (no filter key), 180 steps, 2 held-out demos among them"
    assert words in line_of(lines)
    assert warnings_of(lines) == []


def test_a_mask_that_is_called_all_is_meant_by_its_name(start, tmp_path):
    path = write_demos(tmp_path / "named.hdf5", filter_keys=False)
    with h5py.File(path, "r+") as file:
        file["mask/all"] = [b"demo_0", b"demo_1"]
    result, _ = start(path, train={"hdf5_filter_key": "all"})
    assert result.results["datasets"][0]["training_demos"] == 2


def test_failures_are_warned_of_with_the_command_that_leaves_them_out(start, demos):
    fail_some(demos, "demo_3", "demo_11")
    _, lines = start(demos)
    assert "1 failure among them" in line_of(lines)
    (warning,) = warnings_of(lines)
    assert "1 demo (demo_3) failed" in warning
    assert "imitate dataset filter" in warning and "train.hdf5_filter_key=solved" in warning


def test_algorithms_that_learn_from_rewards_are_not_warned_of_failures(demos, start):
    fail_some(demos, "demo_3")
    _, lines = start(demos)
    assert warnings_of(lines)
    _, lines = start(demos, "td3_bc")
    assert "1 failure among them" in line_of(lines)
    assert warnings_of(lines) == []


def test_held_out_demos_without_a_mask_for_the_training_are_warned_of(start, tmp_path):
    path = write_demos(tmp_path / "valid_only.hdf5")
    with h5py.File(path, "r+") as file:
        del file["mask/train"]
    _, lines = start(path)
    (warning,) = warnings_of(lines)
    assert "2 demos (demo_10, demo_11)" in warning and "hdf5_filter_key=all" in warning


def test_a_run_of_before_goes_on_with_the_demos_it_had(start, demos):
    first, _ = start(demos, train={"hdf5_filter_key": "all"})
    config = json.loads((first.run_dir / "config.json").read_text())
    config["train"]["hdf5_filter_key"] = None  # as older versions wrote it: all demos
    (first.run_dir / "config.json").write_text(json.dumps(config))
    again = resume(first, 2)
    assert again.status == "finished"
    assert again.results["training_data"]["files"][0]["demos"] == 12


def test_validation_takes_the_rest_whatever_all_means(demos):
    keys = {"hdf5_filter_key": "all", "hdf5_validation_filter_key": "valid"}
    config = config_dict(demos, experiment={"validate": True}, train=keys)
    train_set, valid_set = build_datasets(resolve(load_config(config), None, None))
    assert (len(train_set.demos), len(valid_set.demos)) == (10, 2)


ROLLOUTS = {"rollout": {"enabled": True, "n": 2}}


def test_an_environment_that_cannot_be_imported_is_found_before_the_first_update(start, demos):
    missing = {"env_name": "no_such_module:Reach-v0", "type": 2}
    with refused("no_such_module|rollout.enabled=false", error=EnvError):
        start(demos, experiment={**ROLLOUTS, "env_meta_update_dict": missing})
    (results,) = demos.parent.glob("runs/point/*/results.json")
    assert json.loads(results.read_text())["step"] == 0


@pytest.mark.parametrize("workers", [0, 1])
def test_an_environment_of_other_observations_is_found_before_the_first_update(
    start, demos, workers
):
    other = {"env_name": "CartPole-v1", "env_kwargs": {}}
    rollout = {"rollout": {"enabled": True, "n": 2, "num_workers": workers}}
    with refused("no observation 'goal'", error=EnvError):
        start(demos, experiment={**rollout, "env_meta_update_dict": other})


@pytest.fixture
def robot_demos(tmp_path):
    robot = {"env_name": "my_arm", "type": 4, "env_kwargs": {"port": "/dev/arm"}}
    return write_demos(tmp_path / "robot.hdf5", meta=robot)


def test_on_a_real_robot_rollouts_are_off_and_its_rate_reaches_the_checkpoint(start, robot_demos):
    with h5py.File(robot_demos, "r+") as file:
        file["data"].attrs["control_freq"] = 10
    result, lines = start(robot_demos, experiment=ROLLOUTS)
    assert (result.status, result.exit_code) == ("finished", 0)
    (note,) = [line for line in lines if line.startswith("rollouts are off")]
    assert "imitate dataset set-env" in note and "--env" in note
    config = json.loads((result.run_dir / "config.json").read_text())
    assert config["experiment"]["rollout"]["enabled"] is False
    policy, ckpt = policy_from_checkpoint(ckpt_path=result.checkpoint)
    assert policy.control_freq == control_freq_of(ckpt) == 10.0


def test_a_named_environment_stands_in_for_a_real_robot(robot_demos, tmp_path):
    config = config_dict(robot_demos, experiment=ROLLOUTS, train={"num_epochs": 1})
    name = env_meta()["env_name"]
    result = train(config, output_dir=tmp_path / "runs", env=name, quiet=True)
    assert result.results["final"]["episodes"] == 2


def test_a_horizon_as_long_as_the_demonstrations_is_told_of_once(start, tmp_path):
    path = write_demos(tmp_path / "far.hdf5", meta=env_meta(out_of_reach=True))
    rollout = {"enabled": True, "n": 2, "horizon": 15, "num_workers": 0}
    _, lines = start(path, experiment={"rollout": rollout}, train={"num_epochs": 2})
    (note,) = [line for line in lines if line.startswith("note: ")]
    assert note == (
        "note: 2 of 2 failures ended at the horizon of 15; demonstrations last up to 15 steps: "
        "--set experiment.rollout.horizon=30"
    )


# ---- words and shares by hand --------------------------------------------------------------------


def share(path="data/a.hdf5", **more):
    words = {"filter_key": None, "demos": 2, "of": 3, "steps": 1, "longest": 1}
    return FileShare(path, **{**words, "failures": (), "held_out": (), **more})


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (share(), "a.hdf5: 2 of 3 demos (no filter key), 1 step"),
        (
            share(
                filter_key="train", of=1, demos=1, shards=2, failures=("a", "b"), held_out=("c",)
            ),
            "a.hdf5 (2 shards): 1 of 1 demo (filter key 'train'), 1 step, 2 failures among them, "
            "1 held-out demo among them",
        ),
    ],
)
def test_a_share_in_words(found, words):
    assert found.words == words


def test_three_files_and_four_numbers_are_named():
    shapes, constant = {"b": [2, 3], "a": []}, {"b": [0, 1, 2, 3]}
    data = TrainingData((share(),) * 3, shapes, 1234, constant)
    one = share().words
    assert data.words == (
        f"training data: {one}; {one}; {one}; observations b 2x3, a 1; network 1,234 weights; "
        "constant, so not scaled: b [0, 1, 2, 3]"
    )
    more = TrainingData((share(),) * 5, {}, 1, {"b": [0, 1, 2, 3, 9]})
    assert f"{one}; 2 more files, 4 demos; observations ; network 1 weights" in more.words
    assert more.words.endswith("b [0, 1, 2, 3, ...]")
    assert TrainingData((), {"a": [2]}, 9, {}).words == "observations a 2; network 9 weights"
    (file, *_) = TrainingData((share(failures=("a",)),), {}, 1, {}).to_dict()["files"]
    assert (file["failures"], file["held_out"]) == (1, 0)


def of_run(filter_key=None, transitions=None):
    algo = Words(data_needs=lambda config: Words(transitions=transitions))
    return Words(train=Words(hdf5_filter_key=filter_key), algo=algo)


@pytest.mark.parametrize(
    ("found", "config", "words"),
    [
        (share(failures=("a",)), of_run(), ["1 demo (a) failed and|data/a.hdf5 solved --success --in-place, then"]),
        (share(failures=tuple("abcd")), of_run(), ["4 demos (a, b, c, d) failed"]),
        (share(failures=tuple("abcde")), of_run(), ["5 demos (a, b, c, d, ...) failed"]),
        (share(failures=("a",), filter_key="train"), of_run(), ["--success --filter-key train --in-place,"]),
        (share(failures=("a",), shards=2), of_run(), ["FILE solved --success --in-place (on the files, before"]),
        (share(failures=("a",), filter_key="best"), of_run(), []),
        (share(failures=("a",)), of_run("best"), []),
        (share(failures=("a",)), of_run(transitions="steps"), []),
        (share(held_out=("a", "b")), of_run(transitions="steps"), ["2 demos (a, b) from the validation mask"]),
        (share(failures=("a",), held_out=("b",)), of_run(), ["1 demo (a)", "1 demo (b)"]),
    ],
)  # fmt: skip
def test_warnings_of_the_choice(found, config, words):
    lines = choice_warnings(config, TrainingData((found,), {}, 1, {}))
    assert len(lines) == len(words)
    for line, parts in zip(lines, words, strict=True):
        assert line.startswith("warning: data/a.hdf5: ")
        assert all(part in line for part in parts.split("|"))


@pytest.mark.parametrize(
    ("filter_key", "validation", "arrays", "failures", "held_out"),
    [
        (None, "valid", (), ("c",), ("d",)),
        (None, "none", (), ("c",), ()),
        (None, "valid", ("labelled",), (), ("d",)),
        ("valid", "valid", (), (), ()),
    ],
)
def test_the_share_of_shards(filter_key, validation, arrays, failures, held_out):
    """Two of the three demos of the first shard are chosen, all of the second, none of the third."""

    def shard(name, demos, lengths, success, valid=()):
        chosen = list(valid) if filter_key else list(demos)
        masks = {"valid": valid}
        words = {"file": name, "demos": demos, "lengths": lengths, "success": success}
        return Words(chosen=lambda key: chosen, filter_keys=masks, **words)

    def source(name, most):
        return Words(path=Path("x") / name, filter_key=filter_key, among=lambda demos: demos[:most])

    shards = [
        shard("1.hdf5", ("a", "b", "z"), (3, 4, 9), (True, None, False)),
        shard("2.hdf5", ("c", "d"), (5, 6), (False, True), valid=("d",)),
        shard("3.hdf5", ("e",), (70,), (False,)),
    ]
    folder = Words(place="there", index=Words(shards=shards, arrays=arrays))
    found = share_of_shards(folder, [source("1.hdf5", 2), source("2.hdf5", 9)], validation)
    assert (found.path, found.of, found.shards) == ("there", 6, 2)
    assert (found.failures, found.held_out) == (failures, held_out)
    numbers = (1, 6, 6) if filter_key else (4, 18, 6)
    assert (found.demos, found.steps, found.longest) == numbers
    empty = share_of_shards(folder, [source("1.hdf5", 0)], validation)
    assert (empty.demos, empty.longest) == (0, 0)
