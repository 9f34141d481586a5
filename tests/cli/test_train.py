"""`imitate train` as installed: exit codes and what it prints."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "train"
spec = importlib.util.spec_from_file_location("train_conftest", FOLDER / "conftest.py")
ground = importlib.util.module_from_spec(spec)
spec.loader.exec_module(ground)

IMITATE = Path(sys.executable).parent / "imitate"


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


def command(*arguments, cwd, **kwargs):
    env = {**os.environ, "PYTHONPATH": str(ground.ENV_FOLDER)}
    return subprocess.Popen(
        [IMITATE, *map(str, arguments)],
        cwd=cwd,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        **kwargs,
    )


def run(*arguments, cwd):
    process = command(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.mark.slow
def test_from_the_command_line_to_a_table_and_json(config, tmp_path):
    path = config()
    (tmp_path / "elsewhere").mkdir()
    code, out, err = run(
        *("train", "--config", path, "--output-dir", "out", "--name", "mine", "--epochs", 2),
        *("--set", "train.batch_size=8", "--device", "cpu"),
        cwd=tmp_path / "elsewhere",  # train.data lies beside the JSON
    )
    assert code == 0, err
    assert "epoch 2/2: loss" in err
    assert "policy_from_checkpoint" in out
    (run_dir,) = (tmp_path / "elsewhere" / "out" / "mine").iterdir()
    resolved = json.loads((run_dir / "config.json").read_text())
    assert resolved["train"]["batch_size"] == 8
    code, out, err = run(
        "train", "--resume", run_dir, "--epochs", 3, "--quiet", "--json", cwd=tmp_path
    )
    assert code == 0
    assert err == ""
    results = json.loads(out)
    assert (results["status"], results["epoch"], results["step"]) == ("finished", 3, 60)
    assert results == json.loads((run_dir / "results.json").read_text())


@pytest.mark.slow
def test_ctrl_c_says_how_to_go_on(config, tmp_path):
    process = command("train", "--config", config(train={"num_epochs": 100000}), cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("runs/point/*/metrics.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    (run_dir,) = tmp_path.glob("runs/point/*")
    assert f"imitate train --resume runs/point/{run_dir.name}" in out
    assert (run_dir / "checkpoints" / "last.pth").is_file()
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_run_whose_evaluation_fails_ends_with_exit_code_1(config, tmp_path):
    path = config(experiment={"rollout": {"enabled": True, "num_workers": 0}})
    (tmp_path / "demos.hdf5").unlink()
    every_episode = list(range(100000, 100004))
    ground.write_demos(tmp_path / "demos.hdf5", meta=ground.env_meta(raise_at=every_episode))
    code, out, err = run("train", "--config", path, cwd=tmp_path)
    assert code == 1
    assert "evaluation of epoch 3 failed: EvaluationError: no episode could be played" in err
    assert "finished" in out


@pytest.mark.slow
def test_an_environment_that_cannot_be_made_ends_before_the_first_update(config, tmp_path):
    path = config(
        experiment={"rollout": {"enabled": True, "num_workers": 0}, "env": "point_mass:Nothing-v0"}
    )
    code, out, err = run("train", "--config", path, cwd=tmp_path)
    assert code == 2 and "Traceback" not in err
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: ") and "Nothing-v0" in last
    assert "finished" not in out
