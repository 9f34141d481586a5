"""The examples run as they stand."""

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch

from imitate.data import DatasetFile
from tests.point_policy import save_point_policy

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def lift_demos(demo_file):
    return demo_file(num_demos=10, length=40, actions_from_obs=True)


# ---- the training loop ---------------------------------------------------------------------------


@pytest.mark.slow("the updates of the example as it stands")
def test_simple_train_loop_learns(lift_demos, tmp_path, monkeypatch, capsys):
    model, program = tmp_path / "model.pth", str(EXAMPLES / "simple_train_loop.py")
    monkeypatch.setattr(sys, "argv", [program, str(lift_demos), str(model)])
    runpy.run_path(program, run_name="__main__")
    told = re.findall(r"epoch (\d): loss (.*)", capsys.readouterr().out)
    assert [epoch for epoch, _ in told] == list("12345")
    assert float(told[-1][1]) < 0.5 * float(told[0][1])
    assert set(torch.load(model, weights_only=True)["model"]) >= {"nets", "optimizers"}


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
        assert (file.file_attrs["control_freq"], file.demos()) == (10.0, ["demo_0"])


def test_another_rate_than_the_robots_data_is_refused(imitate, checkpoint, tmp_path):
    done = imitate("run", checkpoint, "--robot", ARM, "--rate-hz", 20, cwd=tmp_path, check=False)
    assert done.returncode == 2
    assert "the rate is 20 Hz, but the demonstrations have 10 Hz" in done.stderr


def test_the_robot_is_short():
    code = (EXAMPLES / "own_robot.py").read_text().split("class PointArm")[1]
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
