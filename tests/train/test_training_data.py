import io
import json

import h5py
import pytest

from imitate.config import load_config
from imitate.data import build_datasets
from imitate.errors import EnvError
from imitate.policy.checkpoint import control_freq_of
from imitate.policy.loading import policy_from_checkpoint
from imitate.train.setup import resolve
from imitate.train.trainer import train
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
