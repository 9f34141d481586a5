"""Recorded episodes are demonstrations: what was seen, what was sent, who acted."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, DatasetWriter
from imitate.data.file.features import features_of, number_names
from imitate.data.quality.doctor.diagnosis import diagnose
from imitate.deploy.robot.loop import ControlLoop, Safety
from imitate.deploy.robot.recording import Recorder
from imitate.deploy.robot.robot import Guidance
from imitate.errors import DatasetError, UserError
from tests.deploy.fake_robot import Constant, FakeRobot, Scripted

pytestmark = pytest.mark.usefixtures("virtual_time")
CALM = Safety(late=0)


def record(path, script, policy=None, steps=6, **rest):
    with Recorder(path, 100.0, image_storage="raw", **rest) as recorder:
        words = {"teleoperator": Scripted(script), "on_step": recorder.on_step, "safety": CALM}
        ControlLoop(FakeRobot(), policy, 100.0, **words).run(steps)
        recorder.keep(True, language="push")
    return path


def test_an_episode_is_a_demonstration(tmp_path):
    script = {k: Guidance(np.array([0.1 * k, 0.0])) for k in (1, 2, 4)}
    path = record(tmp_path / "a.hdf5", script)
    with h5py.File(path) as raw:
        (demo,) = raw["data"].values()
        np.testing.assert_allclose(demo["actions"][:, 0], [0.1, 0.2, 0.4])  # step 3 was held
        assert demo["obs/camera"].shape == (3, 4, 4, 3)
        assert bool(demo.attrs["success"])
        assert demo.attrs["language"] == "push"
        assert raw["data"].attrs["control_freq"] == 100.0
        assert "interventions" not in demo
        np.testing.assert_allclose(demo["timestamps"][:], [0.0, 0.01, 0.03])  # the gap is recorded


def test_the_doctor_finds_the_steps_that_were_held_while_recording(tmp_path):
    script = {k: Guidance(np.array([0.1 * k, 0.0])) for k in (1, 2, 3, 4, 8, 9)}
    report = diagnose(record(tmp_path / "a.hdf5", script, steps=9))
    (clock,) = [finding for finding in report.findings if finding.code == "clock"]
    assert "0.03 is followed by 0.07 in 'demo_0'" in clock.what
    assert clock.places[0].steps == ((4, 5),)


def test_a_robot_whose_time_stops_between_two_actions_has_no_times(tmp_path):
    robot = FakeRobot()
    robot.in_step = True
    script = {k: Guidance(np.array([0.1, 0.0])) for k in (1, 2)}
    with h5py.File(record(tmp_path / "a.hdf5", script, robot=robot)) as raw:
        assert len(raw["data/demo_0/actions"]) == 2 and "timestamps" not in raw["data/demo_0"]


def test_with_a_policy_interventions_and_its_wishes_are_recorded(tmp_path):
    script = {3: Guidance(np.array([-0.5, 0.0]))}
    path = record(tmp_path / "a.hdf5", script, Constant((0.1, 0.2)), with_policy=True)
    with h5py.File(path) as raw:
        demo = raw["data/demo_0"]
        assert demo["interventions"][:].tolist() == [0, 0, 1, 0, 0, 0]
        np.testing.assert_allclose(demo["policy_actions"][:, 0], [0.1] * 6)
        np.testing.assert_allclose(demo["actions"][:, 0], [0.1, 0.1, -0.5, 0.1, 0.1, 0.1])


def test_a_discarded_episode_leaves_nothing(tmp_path):
    path = tmp_path / "a.hdf5"
    recorder = Recorder(path, 100.0)
    loop = ControlLoop(FakeRobot(), Constant(), 100.0, safety=CALM, on_step=recorder.on_step)
    loop.run(3)
    recorder.discard()
    assert recorder.keep(True) is None
    recorder.close()
    assert list(tmp_path.iterdir()) == []


def test_each_episode_of_a_recorder_has_its_steps_times_and_success(tmp_path):
    with Recorder(tmp_path / "a.hdf5", 100.0) as recorder:
        for steps, success in ((3, True), (2, None)):
            words = {"safety": CALM, "on_step": recorder.on_step}
            ControlLoop(FakeRobot(), Constant(), 100.0, **words).run(steps)
            assert recorder.steps == steps
            recorder.keep(success, note=None, lang="go")
        assert recorder.keep(True) is None and recorder.episodes == 2
    with h5py.File(tmp_path / "a.hdf5") as raw:
        found = {name: demo["timestamps"][:].tolist() for name, demo in raw["data"].items()}
        attrs = [dict(raw["data"][name].attrs) for name in ("demo_0", "demo_1")]
    assert found == {"demo_0": pytest.approx([0, 0.01, 0.02]), "demo_1": pytest.approx([0, 0.01])}
    assert bool(attrs[0]["success"]) and "success" not in attrs[1]
    assert all(one["lang"] == "go" and "note" not in one for one in attrs)


FIRST = {1: Guidance(np.array([0.1, 0.0]))}
"""A person who acts in the first step alone."""


def test_a_session_goes_on_in_the_same_file(tmp_path):
    path = record(tmp_path / "a.hdf5", FIRST)
    record(path, FIRST, append=True)
    with DatasetFile(path) as file:
        assert file.demos() == ["demo_0", "demo_1"]


def test_a_file_without_times_is_gone_on_with(tmp_path):
    with DatasetWriter(tmp_path / "a.hdf5", {}, control_freq=100.0) as writer:
        writer.start_episode()
        obs = {"state": np.zeros(2, np.float32), "camera": np.zeros((4, 4, 3), np.uint8)}
        writer.append(obs=obs, action=np.zeros(2))
        writer.finish_episode(success=True)
    record(tmp_path / "a.hdf5", FIRST, append=True)
    with DatasetFile(tmp_path / "a.hdf5") as file:
        assert file.demos() == ["demo_0", "demo_1"] and not file.has("demo_1", "timestamps")


@pytest.mark.parametrize("names", [(None, {}), (("a", "b"), {"state": ("x", "y")})])
def test_names_of_the_robots_numbers_are_those_of_the_data(tmp_path, names):
    robot = FakeRobot()
    robot.action_names, robot.observation_names = names
    path = record(tmp_path / "a.hdf5", FIRST, robot=robot)
    with DatasetFile(path) as file:
        found = number_names(features_of(file.file_attrs, "a"))
    assert found == ({} if names[0] is None else {"state": ["x", "y"], "actions": ["a", "b"]})


def test_observations_may_be_chosen(tmp_path):
    with DatasetFile(record(tmp_path / "a.hdf5", FIRST, keys=("state",))) as file:
        assert file.obs_keys("demo_0") == ["state"]
    with pytest.raises(
        UserError, match="the robot gives no 'wrist'; choose observations from state, camera"
    ):
        record(tmp_path / "b.hdf5", FIRST, keys=("wrist",))


def test_an_existing_file_is_only_replaced_if_asked(tmp_path):
    path = record(tmp_path / "a.hdf5", FIRST)
    before = path.read_bytes()
    with pytest.raises(DatasetError, match="exists"):
        Recorder(path, 100.0)
    assert path.read_bytes() == before
    with Recorder(path, 50.0, overwrite=True, name="arm") as recorder:
        assert (recorder.steps, recorder.episodes) == (0, 0)
        ControlLoop(
            FakeRobot(), Constant(), 50.0, any_rate=True, safety=CALM, on_step=recorder.on_step
        ).run(2)
        recorder.keep(None)
    with DatasetFile(path) as file:
        assert (file.demos(), file.control_freq, file.length("demo_0")) == (["demo_0"], 50.0, 2)
        assert file.env_meta == {"env_name": "arm", "type": 4, "env_kwargs": {}}
