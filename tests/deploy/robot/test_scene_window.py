"""The window on a simulated scene follows it step by step, and each episode's model has a window of its own."""

import contextlib
import types

import numpy as np
import pytest

from imitate.deploy.robot.simulated import SimulatedRobot
from imitate.errors import EnvError

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}


class FakeViewer:
    """MuJoCo's viewer without a window."""

    def __init__(self, model, data, **ui):
        self.model, self.data, self.synced, self.open = model, data, [], True
        self.opt = types.SimpleNamespace(geomgroup=np.ones(6))
        self.cam = types.SimpleNamespace(lookat=np.zeros(3))

    def lock(self):
        return contextlib.nullcontext()

    def is_running(self):
        return self.open

    def sync(self):
        self.synced.append(self.data.time)

    def close(self):
        self.open = False


@pytest.fixture
def viewers(monkeypatch):
    import glfw
    import mujoco.viewer

    made = []

    def launch(model, data, **ui):
        made.append(FakeViewer(model, data, **ui))
        return made[-1]

    monkeypatch.setattr(glfw, "init", lambda: True)
    monkeypatch.setattr(mujoco.viewer, "launch_passive", launch)
    return made


@pytest.mark.slow("a process with a window")
@pytest.mark.robosuite
def test_each_step_is_shown_and_each_episode_has_a_window(viewers):
    robot = SimulatedRobot(LIFT, in_step=True, view=True)
    robot.connect()
    (first,) = viewers
    for _ in range(3):
        robot.send(np.zeros(7))
    assert len(first.synced) == 4
    assert (np.diff(first.synced) > 0.04).all()  # 20 Hz
    robot.reset()
    robot.send(np.zeros(7))
    _, second = viewers
    assert not first.open
    assert second.model is not first.model
    assert len(second.synced) == 2
    second.open = False  # the person closes it
    robot.send(np.zeros(7))
    assert len(second.synced) == 2
    robot.close()
    assert len(viewers) == 2


@pytest.mark.robosuite
def test_without_a_display_it_is_one_line(monkeypatch):
    import glfw

    monkeypatch.setattr(glfw, "init", lambda: False)
    robot = SimulatedRobot(LIFT, in_step=True, view=True)
    with pytest.raises(EnvError, match="no window can be opened: GLFW finds no display"):
        robot.connect()
    robot.close()


def test_other_environments_have_no_scene_to_show():
    robot = SimulatedRobot({"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}, view=True)
    with pytest.raises(EnvError, match="view shows robosuite's environments only"):
        robot.connect()
    robot.close()
