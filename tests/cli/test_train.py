"""`imitate train`: exit codes and what it prints."""

import json
import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest

from tests.loading import load

ground = load("tests/train/conftest.py")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path):
    def write(**sections):
        data = tmp_path / "demos.hdf5"
        if not data.exists():
            ground.write_demos(data)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(ground.config_dict("demos.hdf5", **sections)))
        return path

    return write


@pytest.fixture
def train(imitate):
    """The command in a forked process that finds the environment's module."""
    return partial(imitate, "train", path=[ground.ENV_FOLDER])


@pytest.mark.slow("two trainings by the command")
def test_from_the_command_line_to_a_table_and_json(config, train, tmp_path):
    path = config()
    (tmp_path / "elsewhere").mkdir()
    done = train(
        *("--config", path, "--output-dir", "out", "--name", "mine", "--epochs", 2),
        *("--set", "train.batch_size=8", "--device", "cpu"),
        cwd=tmp_path / "elsewhere",  # train.data is beside the JSON
    )
    assert "epoch 2/2: loss" in done.stderr
    assert "policy_from_checkpoint" in done.stdout
    (run_dir,) = (tmp_path / "elsewhere" / "out" / "mine").iterdir()
    resolved = json.loads((run_dir / "config.json").read_text())
    assert resolved["train"]["batch_size"] == 8
    done = train("--resume", run_dir, "--epochs", 3, "--quiet", "--json", cwd=tmp_path)
    assert done.stderr == ""
    results = json.loads(done.stdout)
    assert (results["status"], results["epoch"], results["step"]) == ("finished", 3, 60)
    assert results == json.loads((run_dir / "results.json").read_text())


def test_ctrl_c_says_how_to_go_on(config, preloaded_commands, tmp_path):
    path = [str(ROOT), str(ground.ENV_FOLDER)]
    process = subprocess.Popen(
        [
            str(preloaded_commands / "imitate"),
            "train",
            "--config",
            config(train={"num_epochs": 10**5}),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    while not list(tmp_path.glob("runs/point/*/metrics.jsonl")) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    (run_dir,) = tmp_path.glob("runs/point/*")
    assert f"imitate train --resume runs/point/{run_dir.name}" in out
    assert (run_dir / "checkpoints" / "last.pth").is_file()
    assert "Traceback" not in err


@pytest.mark.slow("a training with evaluations by the command")
def test_a_run_whose_evaluation_fails_ends_with_exit_code_1(config, train, tmp_path):
    every_episode = list(range(100000, 100004))
    ground.write_demos(tmp_path / "demos.hdf5", meta=ground.env_meta(raise_at=every_episode))
    path = config(experiment={"rollout": {"enabled": True, "num_workers": 0}})
    done = train("--config", path, cwd=tmp_path, check=False)
    assert done.returncode == 1
    failure = "evaluation of epoch 3 failed: EvaluationError: no episode could be played"
    assert failure in done.stderr
    assert "finished" in done.stdout


def test_an_environment_that_cannot_be_made_ends_before_the_first_update(config, train, tmp_path):
    rollout = {"enabled": True, "num_workers": 0}
    path = config(experiment={"rollout": rollout, "env": "point_mass:Nothing-v0"})
    done = train("--config", path, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and "Nothing-v0" in last
    assert "finished" not in done.stdout
