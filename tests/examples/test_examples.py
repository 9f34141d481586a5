"""The examples run as they stand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from imitate.data import DatasetFile
from tests.loading import load
from tests.point_policy import save_point_policy

EXAMPLES = Path(__file__).parents[2] / "examples"


# One thread, as in the rest of the suite.
ENVIRON = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def lift_demos(demo_file):
    return demo_file(num_demos=10, length=40, actions_from_obs=True)


# ---- the training loop ---------------------------------------------------------------------------


def test_simple_train_loop_learns(lift_demos, tmp_path):
    model = tmp_path / "model.pth"
    example = load("examples/simple_train_loop.py")
    first = example.main(str(lift_demos), str(model), num_epochs=1, steps_per_epoch=50)
    last = example.main(str(lift_demos), str(model), num_epochs=4, steps_per_epoch=50)
    assert last < 0.5 * first
    saved = torch.load(model, weights_only=True)["model"]
    assert set(saved) >= {"nets", "optimizers"}


def test_simple_train_loop_as_a_command(lift_demos, tmp_path):
    model = tmp_path / "model.pth"
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "simple_train_loop.py"), str(lift_demos), str(model)],
        capture_output=True,
        text=True,
        timeout=600,
        env=ENVIRON,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("epoch 5: loss 0.")
    assert model.is_file()


# ---- a robot of one's own ------------------------------------------------------------------------


@pytest.fixture
def checkpoint(tmp_path):
    return save_point_policy(tmp_path / "policy.pth")


ARM = f"{EXAMPLES / 'own_robot.py'}:PointArm"


def test_a_policy_runs_on_a_robot_of_ones_own(imitate, checkpoint, tmp_path):
    done = imitate(
        "run", checkpoint, "--robot", ARM, "--steps", 12, "--record", "a.hdf5", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("episode 0: 12 steps, latency p50 ")
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.file_attrs["control_freq"] == 10.0
        assert file.demos() == ["demo_0"]


def test_another_rate_than_the_robots_data_is_refused(imitate, checkpoint, tmp_path):
    done = imitate("run", checkpoint, "--robot", ARM, "--rate-hz", 20, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "the rate is 20 Hz, but that of the demonstrations is 10 Hz" in done.stderr


def test_a_file_that_is_not_there_is_one_line(imitate, checkpoint, tmp_path):
    done = imitate("run", checkpoint, "--robot", "nobody.py:Arm", cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "nobody.py: no such file" in done.stderr


def test_the_robot_is_short():
    code = (EXAMPLES / "own_robot.py").read_text().split("class PointArm")[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
