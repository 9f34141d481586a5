"""robosuite's raw recordings: from states to observations."""

import json

import h5py
import numpy as np
import pytest

from imitate.collection.replay import replayed
from imitate.data import DatasetFile
from imitate.data.formats.convert import convert
from imitate.envs import make_env
from imitate.errors import DatasetError

INFO = {"env_name": "Lift", "robots": ["Panda"], "control_freq": 20, "has_renderer": True}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A demo.hdf5 as robosuite's collection script leaves it, and the observations its author saw."""
    path = tmp_path_factory.mktemp("raw") / "demo.hdf5"
    env = make_env(
        {"env_name": "Lift", "type": 1, "env_kwargs": {"robots": ["Panda"], "control_freq": 20}}
    )
    random = np.random.default_rng(0)
    obs, _ = env.reset(seed=3)
    first = env.get_state()
    seen, states, actions = [obs], [], []
    for _ in range(6):
        states.append(env.get_state()["states"])
        actions.append(random.uniform(-1, 1, 7))
        obs, *_ = env.step(actions[-1])
        seen.append(obs)
    env.close()
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs.update(
            {
                "env": "Lift",
                "env_info": json.dumps(INFO),
                "repository_version": "1.5.2",
                "date": "1-1-2026",
            }
        )
        demo = data.create_group("demo_1")
        demo.attrs["model_file"] = first["model"]
        if first.get("ep_meta"):
            demo.attrs["ep_meta"] = first["ep_meta"]
        demo["states"], demo["actions"] = np.stack(states), np.stack(actions)
    return path, seen


@pytest.mark.robosuite
def test_replayed_observations_are_those_that_were_seen(recorded, tmp_path):
    path, seen = recorded
    report = convert(path, tmp_path / "o.hdf5", replay=replayed)
    assert (report.source_format, report.steps) == ("robosuite", 6)
    with DatasetFile(tmp_path / "o.hdf5") as file:
        for key in ("object", "robot0_eef_pos", "robot0_joint_pos"):
            wanted = np.stack([obs[key] for obs in seen])
            np.testing.assert_allclose(file.read("demo_1", f"obs/{key}"), wanted[:-1], atol=1e-6)
            np.testing.assert_allclose(
                file.read("demo_1", f"next_obs/{key}"), wanted[1:], atol=1e-3
            )
        assert file.read("demo_1", "terminals").sum() == 0
        assert file.read("demo_1", "timeouts").tolist() == [0, 0, 0, 0, 0, 1]
        assert file.attrs("demo_1")["success"] is False
        meta = file.env_meta
    assert (meta["env_name"], meta["type"], meta["env_version"]) == ("Lift", 1, "1.5.2")
    assert meta["env_kwargs"]["robots"] == ["Panda"]


@pytest.mark.robosuite
def test_without_a_simulator_it_says_what_to_give(recorded, tmp_path):
    with pytest.raises(DatasetError, match="replay=imitate.collection.replay.replayed"):
        convert(recorded[0], tmp_path / "o.hdf5")
    assert not list(tmp_path.iterdir())
