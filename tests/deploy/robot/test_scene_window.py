"""The window on a simulated scene follows it step by step, and each episode's model has a window of its own."""

import contextlib
import types
import warnings

import numpy as np
import pytest

from imitate.deploy.robot import simulated
from imitate.deploy.robot.simulated import SceneWindow, SimulatedRobot
from imitate.errors import EnvError

LIFT = {"env_name": "Lift", "type": 1, "env_kwargs": {}}


class FakeViewer:
    """MuJoCo's viewer without a window."""

    def __init__(self, model, data, **ui):
        self.model, self.data, self.synced, self.open, self.ui = model, data, [], True, ui
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
    with pytest.raises(EnvError, match="view shows only robosuite's environments"):
        robot.connect()
    robot.close()


class Data:
    time = 0.5


def scene(model, data):
    sim = types.SimpleNamespace(
        model=types.SimpleNamespace(_model=model), data=types.SimpleNamespace(_data=data)
    )
    return types.SimpleNamespace(base_env=types.SimpleNamespace(sim=sim))


def test_a_window_shows_its_scene_from_the_front_and_is_closed_once(viewers):
    window, first = SceneWindow(), object()
    window.close()
    for _ in range(2):
        window.show(scene(first, Data()))
    (viewer,) = viewers
    assert viewer.model is first and viewer.synced == [0.5, 0.5]
    assert viewer.ui == {"show_left_ui": False, "show_right_ui": False}
    assert viewer.opt.geomgroup.tolist() == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert viewer.cam.lookat.tolist() == [0.0, 0.0, 1.0]
    assert (viewer.cam.distance, viewer.cam.azimuth, viewer.cam.elevation) == (2.0, 0.0, -30.0)
    viewer.open = False  # the person closes it
    window.show(scene(first, Data()))
    assert viewer.synced == [0.5, 0.5] and len(viewers) == 1
    window.show(scene(object(), Data()))
    assert viewers[1].open and viewers[1].synced == [0.5]
    window.close()
    assert not viewers[1].open
    window.show(scene(first, Data()))
    assert len(viewers) == 3


def test_warnings_of_a_missing_display_are_not_shown_but_the_fault_is(viewers, monkeypatch):
    import glfw

    monkeypatch.setattr(glfw, "init", lambda: warnings.warn("no display", stacklevel=1))
    with (
        warnings.catch_warnings(record=True) as shown,
        pytest.raises(
            EnvError, match="^no window can be opened: GLFW finds no display: view needs a display"
        ),
    ):
        warnings.simplefilter("always")
        SceneWindow().show(scene(object(), Data()))
    assert shown == [] and viewers == []
    for env in (types.SimpleNamespace(), types.SimpleNamespace(base_env=object())):
        with pytest.raises(EnvError, match="view shows only robosuite's environments"):
            SceneWindow().show(env)


def test_a_simulated_robot_shows_each_reset_and_step_and_closes_its_window(monkeypatch):
    calls = []

    class Window:
        def show(self, env):
            calls.append(env.name)

        def close(self):
            calls.append("close")

    monkeypatch.setattr(simulated, "SceneWindow", Window)
    meta = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
    robot = SimulatedRobot(meta, in_step=True, view=True)
    robot.connect()
    robot.send(np.zeros(1))
    robot.send(np.zeros(1))
    robot.close()
    robot.close()
    assert calls == ["Pendulum-v1"] * 3 + ["close"]
    robot = SimulatedRobot(meta, in_step=True)
    robot.connect()
    robot.send(np.zeros(1))
    robot.close()
    assert len(calls) == 4
