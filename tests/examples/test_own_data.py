"""The way of a real robot's data as docs/own_data.md tells it: record, look, train without a simulator, deploy."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from imitate import SequenceDataset, load_config, policy_from_checkpoint
from imitate.data import DatasetFile
from imitate.deploy import ControlLoop, Safety
from imitate.train.trainer import train
from tests.calling import call
from tests.loading import load

EXAMPLES = Path(__file__).parents[2] / "examples"

example, own_robot = load("examples/write_own_dataset.py"), load("examples/own_robot.py")


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own.hdf5"
    assert example.main(str(path)) == 20
    return path


def test_success_failure_and_discard(own):
    """25 episodes: numbers 5, 15 and 25 fail; 10 and 20 go astray too, and are discarded."""
    with DatasetFile(own) as file:
        demos = file.demos()
        said = [bool(file.attrs(demo)["success"]) for demo in demos]
        masks = file.filter_keys()
        assert file.file_attrs["control_freq"] == 10.0
        assert file.attrs("demo_0")["language"] == "push the point to the goal"
    assert (len(demos), sum(said)) == (23, 20)
    assert said.index(False) == 4
    assert (len(masks["train"]), len(masks["valid"])) == (18, 2)
    assert not {"demo_4", *masks["valid"]} & set(masks["train"])


def test_the_file_loads_with_its_images(own):
    keys = ["position", "goal", "camera_image"]
    dataset = SequenceDataset(own, keys, filter_by_attribute="train", load_next_obs=True)
    batch = next(iter(DataLoader(dataset, batch_size=len(dataset))))
    assert batch["obs"]["camera_image"].shape[1:] == (1, 32, 32, 3)
    assert batch["obs"]["camera_image"].dtype == torch.uint8
    # The point moves by a tenth of the action.
    moved = batch["next_obs"]["position"] - batch["obs"]["position"]
    inner = batch["dones"][:, 0] == 0
    assert torch.allclose(moved[inner], 0.1 * batch["actions"][inner], atol=1e-6)
    assert batch["dones"].sum() == 18
    assert set(batch["task_id"].tolist()) == {0}


def test_the_doctor_finds_no_error(own):
    found = call.json("dataset doctor", own, code=None)["findings"]
    assert "error" not in {finding["level"] for finding in found}


def test_train_without_a_simulator_and_deploy_at_the_rate(own, tmp_path):
    config = load_config(
        EXAMPLES / "own_robot.json",
        [
            f"train.data={own}",
            "train.num_epochs=3",
            "train.num_threads=1",
            "train.device=cpu",
            "experiment.logging.log_tb=false",
        ],
    )
    result = train(config, output_dir=tmp_path, quiet=True)
    assert (result.status, result.exit_code) == ("finished", 0)
    policy, ckpt = policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
    assert ckpt["env_metadata"]["type"] == 4

    robot = own_robot.PointArm(seed=100)
    before = np.linalg.norm(robot.goal - robot.position)
    began = time.perf_counter()
    calm = Safety(late=0, watchdog_s=60.0)
    report = ControlLoop(robot, policy, 50.0, safety=calm, any_rate=True).run(40)
    assert time.perf_counter() - began >= 40 / 50
    assert report.steps == 40
    assert np.linalg.norm(robot.goal - robot.position) < 0.5 * before


@pytest.mark.parametrize("images", ["none", "camera_image"])
def test_config_init_makes_a_configuration_that_trains(own, tmp_path, images):
    path = tmp_path / "my.json"
    made = call(f"config init --algo bc --images {images}", own, "--out", path)
    assert "10 Hz" in made.stderr and "about" in made.stderr
    few = ["experiment.epoch_every_n_steps=2", "train.batch_size=4", "train.device=cpu"]
    few += ["experiment.validation_epoch_every_n_steps=1", "experiment.logging.log_tb=false"]
    config = load_config(path, [*few, "train.num_epochs=1", "train.num_threads=1"])
    result = train(config, output_dir=tmp_path, quiet=True)
    assert result.status == "finished"
    policy, _ = policy_from_checkpoint(ckpt_path=result.checkpoint, device="cpu")
    policy.start_episode()
    assert policy(example.PointRobot(seed=0).reset()).shape == (2,)


def test_a_second_session_is_a_second_file(own, tmp_path):
    """A finished file is never written to again; the next session's is trained on beside it, or merged."""
    later = tmp_path / "later.hdf5"
    example.record(example.PointRobot(seed=1), example.Teacher(), str(later), 15)
    config = load_config(
        EXAMPLES / "own_robot.json",
        [f'train.data=[{{"path": "{own}"}}, {{"path": "{later}"}}]', "train.num_epochs=1"],
    )
    result = train(
        config.with_overrides({"experiment.epoch_every_n_steps": 2, "train.num_threads": 1}),
        output_dir=tmp_path,
        quiet=True,
    )
    assert [d["training_demos"] for d in result.results["datasets"]] == [18, 11]
    merged = tmp_path / "both.hdf5"
    call("dataset merge", own, later, "--out", merged)
    with DatasetFile(merged) as file:
        assert len(file.demos()) == 23 + 14
        assert len(file.filter_keys()["train"]) == 18 + 11


SLOW_ROBOT = """
import importlib.util, sys, time
spec = importlib.util.spec_from_file_location("example", sys.argv[1])
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

class Slow(example.PointRobot):
    def step(self, action):
        time.sleep(0.002)
        return super().step(action)

    def reset(self):
        print("episode", flush=True)
        return super().reset()

example.record(Slow(seed=0), example.Teacher(), sys.argv[2], 10_000)
"""


def test_kill_9_loses_the_running_episode_and_finish_makes_the_file(tmp_path):
    path = tmp_path / "own.hdf5"
    command = [sys.executable, "-c", SLOW_ROBOT, str(EXAMPLES / "write_own_dataset.py"), str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        begun = 0
        while begun < 4 and process.stdout.readline() == "episode\n":
            begun += 1
        time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    assert begun == 4
    partial = tmp_path / "own.hdf5.partial"
    assert partial.is_file() and not path.exists()
    done = call("dataset finish", partial)
    with DatasetFile(path) as file:
        count = len(file.demos())
        assert count >= 3
        for demo in file.demos():
            assert np.isfinite(file.read(demo, "obs/position")).all()
    assert done.stdout == f"{path}: {count} episodes\n"
    call("dataset finish", path, code=2)
