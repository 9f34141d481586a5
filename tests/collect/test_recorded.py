"""Calls of the simulator that draws a demo, and messages if it cannot draw, with a stand-in for it."""

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from imitate.collect import recorded
from imitate.collect.recorded import Artist, Drawing, RecordedDemo
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.envs.cameras import Camera
from imitate.envs.migration import installed_robosuite
from imitate.errors import DatasetError, EnvError

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
    with pytest.raises(
        EnvError, match=r"cannot be restored in the simulator .ValueError: no such body." + hint
    ):
        draw(demo(scene="broken"))
    np.testing.assert_array_equal(draw(demo()).obs["x"], STATES)
    assert [simulator.closed for simulator in made] == [True, False]


@pytest.fixture
def opened(tmp_path):
    """Opens a file with one demo of three steps, with these further arrays and attributes."""
    with ExitStack() as stack:

        def make(states=None, attrs=(), **steps):
            zeros = np.zeros(3)
            obs = {"x": STATES, "cam_image": np.zeros((3, 2, 2, 3), np.uint8), "joint_acc": STATES}
            episode = Episode(
                {**obs, "wide": np.zeros((3, 2))}, STATES * 10, zeros, zeros, zeros,
                states=states, steps=steps, attrs=dict(attrs),
            )  # fmt: skip
            with DatasetWriter(tmp_path / "a.hdf5", META) as writer:
                writer.append_episode(episode)
            return stack.enter_context(DatasetFile(tmp_path / "a.hdf5"))

        yield make


def test_a_demo_is_read_with_its_scene_and_the_executed_commands(opened):
    file = opened(STATES, {"model_file": "<m/>", "ep_meta": "{}"}, executed_actions=STATES * 2)
    found = recorded.recorded_demo(file, "demo_0")
    assert (found.name, found.length, found.scene) == (
        "demo_0",
        3,
        {"model": "<m/>", "ep_meta": "{}"},
    )
    np.testing.assert_array_equal(found.commands, STATES * 2)
    np.testing.assert_array_equal(found.start["states"], STATES[0])
    assert found.start["model"] == "<m/>"
    assert recorded.recorded_demo(file, "demo_0", with_commands=False).commands is None
    for next_obs in (True, False):
        drawing = Drawing(Path("a.hdf5"), META, (), next_obs)
        assert (drawing.recorded(file, "demo_0").commands is not None) == next_obs


def test_actions_are_the_commands_where_no_others_were_executed(opened):
    file = opened(STATES)
    found = recorded.recorded_demo(file, "demo_0")
    np.testing.assert_array_equal(found.commands, STATES * 10)
    assert found.scene == {}


def test_a_demo_without_states_names_the_remedy(opened):
    file = opened()
    with pytest.raises(DatasetError, match="states.*; play its images"):
        recorded.recorded_demo(file, "demo_0", "play its images")
    with pytest.raises(DatasetError) as plain:
        recorded.recorded_demo(file, "demo_0")
    assert ";" not in str(plain.value).replace("; it has", "")
    with pytest.raises(
        DatasetError, match="the demo has no 'states' from which images could be rendered"
    ):
        Drawing(Path("a.hdf5"), META, ()).recorded(file, "demo_0")


def test_the_largest_difference_of_each_observation(opened):
    file = opened(STATES)
    shown = {
        "x": STATES + [[0.0], [-0.5], [0.25]], "joint_acc": STATES + 9, "wide": np.zeros((3, 3)),
        "cam_image": np.ones((3, 2, 2, 3), np.uint8), "more": STATES,
    }  # fmt: skip
    drawn = recorded.Drawn(shown, None, {})
    assert recorded.differences(file, "demo_0", drawn, ["cam_image"]) == {"x": 0.5}
    assert recorded.differences(file, "demo_0", drawn, []) == {"cam_image": 1.0, "x": 0.5}
    solved = recorded.Drawn({"x": np.ones((3, 1), bool)}, None, {})
    assert recorded.differences(file, "demo_0", solved, []) == {"x": 2.0}


def test_other_simulators_draw_nothing():
    meta = {**META, "type": 2}
    words = r"demos.hdf5: Lift is not a robosuite environment .env_args\['type'\] is 2.*playback"
    with pytest.raises(EnvError, match=words):
        Artist(Drawing(Path("demos.hdf5"), meta, ()))
