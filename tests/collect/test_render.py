"""States drawn by the real simulator are what a live camera saw."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest

from imitate.collect.render import render
from imitate.data import DatasetFile, DatasetWriter, Episode, SequenceDataset
from imitate.data.edit.selection import Selection
from imitate.envs import make_env
from imitate.envs.cameras import Camera, camera_kwargs
from imitate.errors import DatasetError, EnvError

pytestmark = [pytest.mark.robosuite, pytest.mark.render]

CAMERAS = (
    Camera("agentview", 24, 32, depth=True, segmentation="instance"),
    Camera("robot0_eye_in_hand", 20, 20, depth=True, segmentation="instance"),
)
META = {"env_name": "Lift", "env_version": "1.5.2", "type": 1, "env_kwargs": {"robots": "Panda"}}
STEPS = 3


@pytest.fixture(scope="module")
def live(tmp_path_factory):
    """A file of three demos with states but without images, and what the cameras saw live: T + 1 observations each."""
    path = tmp_path_factory.mktemp("live") / "lift.hdf5"
    env = make_env(
        {**META, "env_kwargs": {**META["env_kwargs"], **camera_kwargs(CAMERAS)}},
        camera_names=[camera.name for camera in CAMERAS],
    )
    random = np.random.default_rng(0)
    images = {key for camera in CAMERAS for key in camera.keys}
    seen = {}
    with DatasetWriter(path, META) as writer:
        for number in range(3):
            if number != 1:  # the second demo goes on in the first one's scene
                obs, _ = env.reset(seed=number)
            start = env.get_state()
            frames, states, actions = [obs], [], []
            for _ in range(STEPS):
                states.append(env.get_state()["states"])
                actions.append(random.uniform(-1, 1, 7))
                obs, *_ = env.step(actions[-1])
                frames.append(obs)
            stacked = {key: np.stack([frame[key] for frame in frames]) for key in obs}
            low_dim = {key: values for key, values in stacked.items() if key not in images}
            name = writer.append_episode(
                Episode(
                    obs={key: values[:-1] for key, values in low_dim.items()},
                    next_obs={key: values[1:] for key, values in low_dim.items()},
                    actions=np.stack(actions),
                    rewards=np.arange(STEPS) + 0.5,
                    terminals=np.zeros(STEPS, bool),
                    timeouts=np.arange(STEPS) == STEPS - 1,
                    states=np.stack(states),
                    attrs={"model_file": start["model"], "ep_meta": start["ep_meta"]},
                )
            )
            seen[name] = stacked
        writer.add_filter_key("train", ["demo_0", "demo_2"])
    env.close()
    return path, seen


@pytest.fixture(scope="module")
def rendered(live, tmp_path_factory):
    """All of it, and the report."""
    out = tmp_path_factory.mktemp("rendered") / "images.hdf5"
    calls = []
    report = render(
        live[0],
        out,
        CAMERAS,
        on_start=lambda steps: calls.append(steps),
        on_demo=lambda demo, steps: calls.append((demo, steps)),
    )
    assert calls == [9, ("demo_0", 3), ("demo_1", 3), ("demo_2", 3)]
    return out, report


def test_images_are_those_that_were_seen_live(live, rendered):
    with DatasetFile(rendered[0]) as file:
        for demo, seen in live[1].items():
            for camera in CAMERAS:
                for key in camera.keys:
                    values = file.read(demo, f"obs/{key}")
                    assert values.dtype == seen[key].dtype
                    np.testing.assert_array_equal(values, seen[key][:-1], err_msg=f"{demo} {key}")


def test_all_else_is_that_of_the_source(live, rendered):
    with h5py.File(live[0]) as old, h5py.File(rendered[0]) as new:
        assert list(new["data"]) == list(old["data"])
        for name, demo in old["data"].items():
            for key in ("actions", "rewards", "dones", "timeouts", "states", "obs/object"):
                assert (new["data"][name][key][()] == demo[key][()]).all()
            assert new["data"][name].attrs["model_file"] == demo.attrs["model_file"]
            assert "next_obs" not in new["data"][name]
        assert list(new["mask/train"]) == [b"demo_0", b"demo_2"]
        info = json.loads(new["data/demo_0"].attrs["camera_info"])
        kwargs = json.loads(new["data"].attrs["env_args"])["env_kwargs"]
    assert info["agentview"]["frame"] == "world"
    assert kwargs.items() >= {"robots": "Panda", **camera_kwargs(CAMERAS)}.items()
    assert info["robot0_eye_in_hand"]["segmentation"][0] == "cube"


def test_report(rendered):
    out, report = rendered
    assert (report.path, report.demos, report.steps, report.images) == (str(out), 3, 9, 18)
    assert (report.lost, report.resumed) == ({}, 0)
    assert (report.recorded_with, report.drawn_with) == ("1.5.2", "1.5.2")
    # float32 in the file, and accelerations left out
    assert max(report.differences.values()) < 1e-6
    assert "object" in report.differences
    assert "robot0_joint_acc" not in report.differences


@pytest.mark.nightly
def test_description_makes_an_environment_that_sees_the_same(live, rendered):
    keys = ["agentview_image", "agentview_depth", "robot0_eye_in_hand_segmentation"]
    with DatasetFile(rendered[0]) as file:
        env = make_env(file.env_meta, obs_keys=keys)
        attrs, states = file.attrs("demo_1"), file.read("demo_1", "states")
        obs = env.reset_to({"states": states[2], "model": attrs["model_file"], "ep_meta": "{}"})
    env.close()
    for key in keys:
        np.testing.assert_array_equal(obs[key], live[1]["demo_1"][key][2])


def test_training_reads_it_with_next_observations(live, rendered):
    keys = ["object", "agentview_image"]
    batch = SequenceDataset(rendered[0], obs_keys=keys, load_next_obs=True)[0]
    np.testing.assert_array_equal(
        np.asarray(batch["next_obs"]["agentview_image"]).reshape(24, 32, 3),
        live[1]["demo_0"]["agentview_image"][1],
    )


@pytest.mark.nightly
def test_next_obs_when_asked_for(live, tmp_path):
    render(
        live[0],
        tmp_path / "next.hdf5",
        CAMERAS[:1],
        next_obs=True,
        selection=Selection(demos=["demo_1"]),
    )
    seen = live[1]["demo_1"]
    with DatasetFile(tmp_path / "next.hdf5") as file:
        assert file.demos() == ["demo_1"]
        images = file.read("demo_1", "next_obs/agentview_image")
        np.testing.assert_array_equal(images[:-1], seen["agentview_image"][1:-1])
        # the last action again, from the last state: the same picture but for a few pixels at edges
        assert np.abs(images[-1].astype(int) - seen["agentview_image"][-1]).mean() < 1.0
        np.testing.assert_array_equal(file.read("demo_1", "next_obs/object"), seen["object"][1:])


@pytest.mark.slow("another simulator is imported")
def test_other_simulators_are_refused(demo_file, tmp_path):
    path = demo_file(num_demos=1, env_meta={"env_name": "CartPole-v1", "type": 2})
    with pytest.raises(EnvError, match="CartPole-v1 is not a robosuite environment .*playback"):
        render(path, tmp_path / "out.hdf5", (Camera("agentview"),))
    with pytest.raises(DatasetError, match="no camera is given"):
        render(path, tmp_path / "out.hdf5", ())


_KILLED = """
import os, signal, sys
from imitate.collect.render import render
from imitate.envs.cameras import Camera
def die(demo, steps):
    if demo == "demo_1":
        os.kill(os.getpid(), signal.SIGKILL)
render(sys.argv[1], sys.argv[2], (Camera("agentview", 16, 16),), workers=2, on_demo=die)
"""


@pytest.mark.nightly
def test_killed_and_resumed_equals_uninterrupted(live, tmp_path):
    cameras, out = (Camera("agentview", 16, 16),), tmp_path / "out.hdf5"
    done = subprocess.run([sys.executable, "-c", _KILLED, str(live[0]), str(out)], check=False)
    assert done.returncode == -9
    assert not out.exists()
    resumed = render(live[0], out, cameras, resume=True)
    assert (resumed.resumed, resumed.demos, resumed.steps) == (2, 3, STEPS)
    render(live[0], tmp_path / "whole.hdf5", cameras)
    with DatasetFile(out) as first, DatasetFile(tmp_path / "whole.hdf5") as second:
        assert first.demos() == second.demos() and first.file_attrs == second.file_attrs
        for demo in first.demos():
            assert first.keys(demo) == second.keys(demo)
            assert first.attrs(demo) == second.attrs(demo)
            for key in first.keys(demo):
                np.testing.assert_array_equal(first.read(demo, key), second.read(demo, key))
    assert not list(tmp_path.glob("out.hdf5.*"))
