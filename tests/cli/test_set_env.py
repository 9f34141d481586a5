import json

import h5py
import numpy as np
import pytest
from typer.testing import CliRunner

from imitate.cli.main import app
from imitate.data import DatasetFile, DatasetWriter

ROBOT = {"env_name": "my_arm", "type": 4, "env_kwargs": {"port": "/dev/arm"}}
SIMULATED = {"env_name": "myarm.envs:Reach-v0", "type": 2, "env_kwargs": {}}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "own.hdf5"
    with DatasetWriter(path, ROBOT, control_freq=10) as writer:
        writer.start_episode()
        for step in range(4):
            writer.append(obs={"joint_pos": np.full(3, step)}, action=np.zeros(2))
        writer.add_filter_key("train", [writer.finish_episode(success=True)])
    return path


def call(*words):
    return CliRunner().invoke(app, ["dataset", "set-env", *map(str, words)])


def env_of(path):
    with DatasetFile(path) as read:
        return read.env_meta


def content(path):
    with h5py.File(path) as read:
        return read["data/demo_0/obs/joint_pos"][()].tolist(), list(read["mask"])


def test_in_place(file):
    before = content(file)
    result = call(file, "--env", "myarm.envs:Reach-v0", "--in-place")
    assert result.exit_code == 0, result.output
    assert env_of(file) == SIMULATED
    assert content(file) == before
    assert json.dumps(ROBOT) in result.stdout
    assert [path.name for path in file.parent.iterdir()] == ["own.hdf5"]


def test_into_a_copy(file, tmp_path):
    result = call(
        file,
        "--env",
        "myarm.envs:Reach-v0",
        "--kwargs",
        '{"steps": 9}',
        "--out",
        tmp_path / "new.hdf5",
    )
    assert result.exit_code == 0, result.output
    assert env_of(tmp_path / "new.hdf5") == {**SIMULATED, "env_kwargs": {"steps": 9}}
    assert env_of(file) == ROBOT
    assert content(tmp_path / "new.hdf5") == content(file)


def test_from_a_description_and_back_to_a_robot(file, tmp_path):
    args = {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": "Panda"}}
    (tmp_path / "lift.json").write_text(json.dumps(args))
    assert call(file, "--env", tmp_path / "lift.json", "--in-place").exit_code == 0
    assert env_of(file) == args
    assert call(file, "--env", "my_arm", "--type", 4, "--kwargs", "{}", "--in-place").exit_code == 0
    assert env_of(file) == {"env_name": "my_arm", "type": 4, "env_kwargs": {}}
