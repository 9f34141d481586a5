"""Files that robosuite 1.4.1 recorded, in the one that is installed."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.collect.action_file import arm_controllers
from imitate.collect.migrate import RECORDED_ENV_ARGS, migrate_file
from imitate.data import DatasetFile
from imitate.data.edit.target import Target
from imitate.errors import DatasetError
from tests.demo_files import make_demo_file

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
LIFT, TWO_ARMS = (FIXTURES / f"robosuite_1.4.1_{name}.hdf5" for name in ("lift", "two_arms"))


@pytest.mark.nightly
def test_a_file_of_1_4_1_plays_in_1_5(tmp_path):
    out = tmp_path / "new.hdf5"
    before = LIFT.read_bytes()
    done = []
    report = migrate_file(LIFT, Target(out), on_demo=lambda *counts: done.append(counts))
    assert report.written
    assert done[-1] == (2, 2)
    assert LIFT.read_bytes() == before
    assert list(report.replays) == ["demo_0", "demo_1"]
    for replay in report.replays.values():
        assert replay.was_solved
        assert replay.is_solved
        assert replay.obs_error_m < 1e-9  # the scene is the same
        assert replay.hand_error_m < 0.001  # and so is the motion: 0.5 mm and 0.2 mm
    with DatasetFile(LIFT) as old, DatasetFile(out) as new:
        assert new.env_meta["env_version"].startswith("1.5")
        assert json.loads(new.file_attrs[RECORDED_ENV_ARGS]) == old.env_meta
        for demo in old.demos():
            assert new.keys(demo) == old.keys(demo)
            for key in old.keys(demo):
                np.testing.assert_array_equal(new.read(demo, key), old.read(demo, key))
            assert "gripper0_right_grip_site" in new.attrs(demo)["model_file"]
    again = migrate_file(out, Target(tmp_path / "again.hdf5"))
    assert not again.written
    assert not again.changes
    assert not (tmp_path / "again.hdf5").exists()


@pytest.mark.nightly
def test_commands_stay_in_the_worlds_frame(tmp_path):
    """Two robots that face each other: in the frames of their bases every command would point elsewhere."""
    report = migrate_file(TWO_ARMS, None, check=1)
    assert report.replays["demo_0"].hand_error_m < 1e-4
    assert not report.written
    wrong = tmp_path / "wrong.hdf5"
    shutil.copy(TWO_ARMS, wrong)
    with h5py.File(wrong, "r+") as file:
        env_args = json.loads(file["data"].attrs["env_args"])
        env_args["env_kwargs"]["controller_configs"]["input_ref_frame"] = "base"
        file["data"].attrs["env_args"] = json.dumps(env_args)
    assert migrate_file(wrong, None, check=1).replays["demo_0"].hand_error_m > 0.02


def test_a_file_without_states_is_not_checked(tmp_path):
    old = tmp_path / "old.hdf5"
    shutil.copy(LIFT, old)
    with h5py.File(old, "r+") as file:
        for demo in file["data"].values():
            del demo["states"]
    report = migrate_file(old, Target(None, source=old))
    assert "no states" in report.not_checked
    assert report.written
    assert (tmp_path / "old.hdf5.bak").exists()
    with DatasetFile(old) as file:
        (arm,) = arm_controllers(file.env_meta["env_kwargs"])
    assert arm["input_type"] == "delta"


@pytest.mark.slow("makes the simulator")
def test_actions_that_do_not_fit(tmp_path):
    old = tmp_path / "old.hdf5"
    shutil.copy(LIFT, old)
    with h5py.File(old, "r+") as file:
        actions = file["data/demo_0/actions"][:, :6]
        del file["data/demo_0/actions"]
        file["data/demo_0/actions"] = actions
    with pytest.raises(DatasetError, match=r"demo_0: actions \(33, 6\).*takes \(7,\).*--check 0"):
        migrate_file(old, Target(tmp_path / "new.hdf5"))
    assert not (tmp_path / "new.hdf5").exists()


def test_other_simulators_are_refused(tmp_path):
    path = make_demo_file(tmp_path / "gym.hdf5", env_meta={"env_name": "Pendulum-v1", "type": 2})
    with pytest.raises(DatasetError, match="is 2: only robosuite's"):
        migrate_file(path, None)
