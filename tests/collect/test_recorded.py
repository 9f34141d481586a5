"""Calls of the simulator that draws a demo, and messages if it cannot draw, with a stand-in for it."""

from pathlib import Path

import numpy as np
import pytest

from imitate.collect import recorded
from imitate.collect.recorded import Artist, Drawing, RecordedDemo
from imitate.envs.cameras import Camera
from imitate.envs.migration import installed_robosuite
from imitate.errors import EnvError

META = {"env_name": "Lift", "env_version": "1.5.1", "type": 1, "env_kwargs": {}}
STATES = np.array([[1.0], [2.0], [3.0]])


class Simulator:
    """Its only observation is its state; a command is added to that."""

    def __init__(self):
        self.scenes, self.closed = [], False

    def reset_to(self, start):
        if "model" in start:
            if start["model"] == "broken":
                raise ValueError("no such body\nand more")
            self.scenes.append(start["model"])
        if len(start["states"]) != 1:
            raise EnvError("its states have another shape")
        self.state = start["states"]
        return {"x": self.state}

    def step(self, action):
        self.state = self.state + action
        return {"x": self.state}, 0.0, False, False, {}

    def camera_info(self):
        return {"agentview": {}}

    def close(self):
        self.closed = True


@pytest.fixture
def made(monkeypatch):
    simulators = []

    def make(make, beat):
        simulators.append(Simulator())
        return simulators[-1]

    monkeypatch.setattr(recorded, "watched", make)
    return simulators


def artist(next_obs=False):
    return Artist(Drawing(Path("demos.hdf5"), META, (Camera("agentview"),), next_obs))


def demo(states=STATES, length=3, commands=None, scene="a"):
    return RecordedDemo("demo_0", states, {"model": scene}, length, commands)


def test_a_scene_is_built_once_for_the_demos_that_follow_in_it(made):
    draw = artist()
    for scene in "aab":
        drawn = draw(demo(scene=scene))
        np.testing.assert_array_equal(drawn.obs["x"], STATES)
        assert drawn.next_obs is None and drawn.camera_info == {"agentview": {}}
    assert [simulator.scenes for simulator in made] == [["a", "b"]]


@pytest.mark.parametrize(("length", "last"), [(3, 13.0), (2, 3.0)])
def test_the_last_next_observation_is_of_the_next_state_or_of_the_last_command(made, length, last):
    drawn = artist(next_obs=True)(demo(length=length, commands=np.full((length, 1), 10.0)))
    np.testing.assert_array_equal(drawn.obs["x"], STATES[:length])
    np.testing.assert_array_equal(drawn.next_obs["x"], [*STATES[1:length], [last]])


def test_states_that_cannot_be_restored_are_told_with_versions_and_remedy(made):
    draw, hint = (
        artist(),
        f"; it was recorded with robosuite 1.5.1, installed is {installed_robosuite()}: try",
    )
    with pytest.raises(EnvError, match="another shape" + hint) as told:
        draw(demo(states=np.zeros((3, 2))))
    assert "`imitate dataset migrate-env demos.hdf5` first" in str(told.value)
    with pytest.raises(EnvError, match=r"cannot be restored .ValueError: no such body." + hint):
        draw(demo(scene="broken"))
    np.testing.assert_array_equal(draw(demo()).obs["x"], STATES)
    assert [simulator.closed for simulator in made] == [True, False]
