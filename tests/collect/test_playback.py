from pathlib import Path
from types import SimpleNamespace

import h5py
import imageio.v3 as imageio
import numpy as np
import pytest

from imitate.collect import playback as module
from imitate.collect.playback import playback
from imitate.collect.recorded import RecordedDemo
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.errors import DatasetError, EnvError


@pytest.fixture
def image_file(tmp_path):
    """Two demos of 5 steps whose 8 x 8 images grow brighter."""
    path = tmp_path / "images.hdf5"
    images = np.repeat(np.arange(5, dtype=np.uint8) * 50, 8 * 8 * 3).reshape(5, 8, 8, 3)
    with DatasetWriter(path, {"env_name": "x", "type": 2}) as writer:
        for _ in range(2):
            writer.append_episode(
                Episode(
                    obs={"front_image": images, "x": np.zeros((5, 2))},
                    actions=np.zeros((5, 1)),
                    rewards=np.zeros(5),
                    terminals=np.zeros(5),
                    timeouts=np.zeros(5),
                )
            )
    return path


def test_the_images_of_a_real_robot_are_shown_by_default(image_file, tmp_path):
    env_args = '{"env_name": "my_arm", "type": 4, "env_kwargs": {}}'
    with h5py.File(image_file, "r+") as file:
        file["data"].attrs["env_args"] = env_args
        file["data"].attrs["control_freq"] = 10
    assert playback(image_file, tmp_path / "v.mp4", size=32, skip=1).frames == 10
    assert imageio.immeta(tmp_path / "v.mp4")["fps"] == 10
    with h5py.File(image_file, "r+") as file:
        for demo in file["data"].values():
            del demo["obs/front_image"]
    with pytest.raises(EnvError, match=r"is 4, a real robot.*set-env"):
        playback(image_file, tmp_path / "w.mp4")


def test_recorded_images_every_second_step(image_file, tmp_path):
    done = []
    report = playback(
        image_file, tmp_path / "v.mp4", by="obs-images", size=32, skip=2, on_demo=done.append
    )
    assert report.frames == 6
    assert done == ["demo_0", "demo_1"]
    frames = imageio.imread(tmp_path / "v.mp4")
    assert frames.shape == (6, 32, 32, 3)
    assert imageio.immeta(tmp_path / "v.mp4")["fps"] == 10  # every second one of 20 a second
    np.testing.assert_allclose(frames[:3].mean(axis=(1, 2, 3)), [0, 100, 200], atol=8)
    assert [path.name for path in tmp_path.glob("*.mp4")] == ["v.mp4"]


@pytest.mark.parametrize(
    ("chosen", "skip", "frames"), [({"demos": ["demo_1"]}, 1, 5), ({"first": 1}, 5, 1)]
)
def test_chosen_demos(image_file, tmp_path, chosen, skip, frames):
    how = {"by": "obs-images", "size": 16, "skip": skip}
    assert playback(image_file, tmp_path / "v.mp4", **chosen, **how).frames == frames


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"demos": ["demo_9"]}, "images.hdf5: there is no demo 'demo_9'"),
        ({"camera": "back"}, "demo_0.*no images of camera 'back'; .*front"),
        ({"by": "stats"}, "did you mean 'states'"),
        ({"video": "v.xyz"}, "give the file this suffix"),
    ],
)
def test_errors_name_file_demo_and_remedy(image_file, tmp_path, how, words):
    how = {"by": "obs-images", "video": "v.mp4", **how}
    with pytest.raises(DatasetError, match=words):
        playback(image_file, tmp_path / how.pop("video"), **how)
    assert list(tmp_path.glob("*.mp4")) == []


@pytest.mark.robosuite
@pytest.mark.render
@pytest.mark.slow("draws the simulator in a process of its own")
def test_actions_lead_to_the_recorded_states(lift_file, tmp_path):
    report = playback(lift_file[0], tmp_path / "v.mp4", first=1, by="actions", size=32, skip=20)
    assert report.success == {"demo_0": True}
    assert report.divergence == {"demo_0": 0.0}
    assert imageio.imread(tmp_path / "v.mp4").shape[0] == report.frames


@pytest.mark.robosuite
@pytest.mark.render
@pytest.mark.nightly
def test_states_show_the_cube_going_up(lift_file, tmp_path):
    with DatasetFile(lift_file[0]) as file:
        length = file.length("demo_0")
    report = playback(
        lift_file[0], tmp_path / "v.mp4", first=1, by="states", size=64, skip=length - 1
    )
    first, last = imageio.imread(tmp_path / "v.mp4").astype(int)
    assert report.frames == 2

    def height_of_red(frame):
        red = (frame[..., 0] > 100) & (frame[..., 1] < 80) & (frame[..., 2] < 80)
        return np.nonzero(red)[0].mean()

    assert height_of_red(last) < height_of_red(first) - 1  # rows count from the top


class Line:
    """A simulator of a time and a place, to which commands are added; it is solved in the place 2 alone."""

    def __init__(self):
        self.starts, self.drawn = [], []

    def reset_to(self, start):
        self.starts.append(sorted(start))
        self.state = np.array(start["states"], dtype=float)

    def step(self, action):
        self.state = self.state + [1.0, action[0]]

    def get_state(self):
        return {"states": self.state}

    def is_success(self):
        return {"task": bool(self.state[1] == 2)}

    def render(self, **size):
        self.drawn.append((int(self.state[1]), *size.values()))
        return np.full((2, 2, 3), self.state[1])


@pytest.mark.parametrize(
    ("by", "skip", "drawn", "starts", "divergence", "success"),
    [
        ("actions", 2, [0, 2], [["model", "states"]], 0.5, True),
        ("actions", 3, [0, 3], [["model", "states"]], 0.5, True),
        ("states", 1, [0, 1, 2, 3], [["model", "states"], *[["states"]] * 3], None, None),
    ],
)
def test_a_demo_is_played_by_its_actions_or_states(
    monkeypatch, by, skip, drawn, starts, divergence, success
):
    """Places 0, 1, 2.5 and 3 were recorded, steps of 1 lead to 0, 1, 2 and 3; times are not compared."""
    env, notes = Line(), []
    monkeypatch.setattr(module, "watched", lambda make, reports: env)
    states = np.array([[9.0, 0.0], [0.0, 1.0], [0.0, 2.5], [0.0, 3.0]])
    commands = np.ones((4, 1)) if by == "actions" else None
    demo = RecordedDemo("demo_0", states, {"model": "m"}, 4, commands)
    view = module.View({}, by, "front", 2, skip)
    played = module.DemoPlayer(view, SimpleNamespace(note=notes.append))(demo)
    assert played == module.PlayedDemo(len(drawn), divergence, success)
    assert env.starts == starts
    assert env.drawn == [(place, 2, 2, "front") for place in drawn]
    assert [int(frame.max()) for note in notes for frame in note.pixels] == drawn


def test_a_simulator_that_hangs_is_named(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "train" / "point_mass_env"))
    meta = {"env_name": "point_mass:PointMass-v0", "type": 2, "env_kwargs": {"hang_in": "make"}}
    path = write_states(tmp_path / "states.hdf5", meta)
    words = (
        "demo_0 cannot be played: making the environment did not return within 1.5 s, in 2 tries"
    )
    with pytest.raises(EnvError, match=words):
        playback(path, tmp_path / "v.mp4", size=8, step_timeout_s=0.3)
    assert list(tmp_path.glob("*.mp4")) == []


def write_states(path, meta):
    with DatasetWriter(path, meta) as writer:
        zeros = np.zeros(5)
        writer.append_episode(
            Episode(
                obs={"pos": np.zeros((5, 2))},
                actions=np.zeros((5, 2)),
                rewards=zeros,
                terminals=zeros,
                timeouts=zeros,
                states=np.zeros((5, 3)),
            )
        )
    return path
