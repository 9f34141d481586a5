"""robosuite's raw recordings: from states to observations."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from shutil import copy

import h5py
import numpy as np
import pytest

from imitate.collect import replay as module
from imitate.collect.action_file import arm_controllers
from imitate.collect.replay import (
    RECORDED_ENV_ARGS,
    Replay,
    migrate_file,
    replay_some,
    replayed,
)
from imitate.data import DatasetFile, DatasetWriter, Episode
from imitate.data.edit.target import Target
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.envs import make_env
from imitate.errors import DatasetError, EnvError, UserError
from tests.crew.test_crew import Here
from tests.demo_files import make_demo_file

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
@pytest.mark.slow("imports the simulator")
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


def cube(env):
    """Where it is now; what a step returns is from a moment before its end."""
    env.env.sim.forward()
    return env.env._get_observations(force_update=True)["cube_pos"]


class Clock:
    """Robosuite's collection script names folders after the time and takes them in the order of the folder."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        self.now += 0.25
        return self.now


@pytest.fixture(scope="module")
def collected(tmp_path_factory):
    """Two demos that robosuite's own wrapper and script recorded, of 5 and 8 steps; and what was seen meanwhile."""
    import robosuite as suite
    from robosuite.scripts import collect_human_demonstrations
    from robosuite.wrappers import DataCollectionWrapper, data_collection_wrapper

    folder = tmp_path_factory.mktemp("collected")
    given = {"robots": "Panda", "has_renderer": False, "has_offscreen_renderer": False}
    given |= {"use_camera_obs": False, "control_freq": 20}
    random = np.random.default_rng(0)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data_collection_wrapper.time, "time", Clock())
        env = DataCollectionWrapper(suite.make("Lift", **given), str(folder / "raw"))
        for length in (5, 8):
            env.reset()
            seen.append([cube(env)])
            for _ in range(length):
                env.step(random.uniform(-1, 1, 7))
                seen[-1].append(cube(env))
            env.successful = True  # else the script leaves the demo out
        env.close()
    info = json.dumps({"env_name": "Lift", **given})
    collect_human_demonstrations.gather_demonstrations_as_hdf5(folder / "raw", folder, info)
    return folder / "demo.hdf5", seen


@pytest.mark.robosuite
@pytest.mark.nightly
def test_what_robosuites_own_script_recorded(collected, tmp_path):
    path, seen = collected
    report = convert(path, tmp_path / "o.hdf5", replay=replayed)
    assert (report.source_format, report.demos, report.steps) == ("robosuite", 2, 13)
    with DatasetFile(tmp_path / "o.hdf5") as file:
        by_length = {file.length(demo): demo for demo in file.demos()}
        assert sorted(by_length) == [5, 8]
        for cubes in seen:
            demo = by_length[len(cubes) - 1]
            found = file.read(demo, "obs/object")[:, :3]
            np.testing.assert_allclose(found, np.stack(cubes)[:-1], atol=1e-6)
        assert file.env_meta["env_kwargs"]["control_freq"] == 20
        assert file.file_attrs["date"]


@pytest.mark.robosuite
@pytest.mark.nightly
def test_two_processes_give_the_same_demos(collected, tmp_path):
    for workers in (1, 2):
        given = Options(workers=workers)
        convert(collected[0], tmp_path / f"{workers}.hdf5", replay=replayed, options=given)
    with DatasetFile(tmp_path / "1.hdf5") as one, DatasetFile(tmp_path / "2.hdf5") as two:
        assert one.demos() == two.demos()
        for demo in one.demos():
            assert one.attrs(demo).keys() == two.attrs(demo).keys()
            for key in one.keys(demo):  # noqa: SIM118
                np.testing.assert_array_equal(one.read(demo, key), two.read(demo, key))


@pytest.mark.robosuite
@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.nightly)])
@pytest.mark.slow("makes the simulator")
def test_a_demo_that_cannot_be_replayed_is_named_whoever_replays_it(recorded, tmp_path, workers):
    path = tmp_path / "bad.hdf5"
    copy(recorded[0], path)
    with h5py.File(path, "a") as file:
        states = file["data/demo_1/states"][:, :9]
        del file["data/demo_1/states"]
        file["data/demo_1/states"] = states
    words = "bad.hdf5: demo 'demo_1' cannot be replayed .*shape \\(9,\\)"
    with pytest.raises(UserError, match=words):
        convert(path, tmp_path / "o.hdf5", replay=replayed, options=Options(workers=workers))
    assert not (tmp_path / "o.hdf5").exists()


@pytest.mark.robosuite
def test_without_a_simulator_it_says_what_to_give(recorded, tmp_path):
    with pytest.raises(DatasetError, match="replay=imitate.collect.replay.replayed"):
        convert(recorded[0], tmp_path / "o.hdf5")
    assert not list(tmp_path.iterdir())


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
    for played in report.replays.values():
        assert played.was_solved
        assert played.is_solved
        assert played.obs_error_m < 1e-9  # the scene is the same
        assert played.hand_error_m < 0.001  # and so is the motion: 0.5 mm and 0.2 mm
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
    with pytest.raises(DatasetError, match="is 2: only files of robosuite"):
        migrate_file(path, None)


class Hand:
    """A hand whose place is the state, to which actions are added; the task is solved at the place 2 alone."""

    action_dim = 1

    def _seen(self):
        return {"x": np.zeros(2), "hand_eef_pos": np.array([self.place, 0.0, 0.0])}

    def reset_to(self, start):
        self.place = float(start["states"][0])
        return self._seen()

    def step(self, action):
        self.place += float(action[0])
        return self._seen(), 0.0, False, False, {}

    def is_success(self):
        return {"task": self.place == 2.0}


@pytest.fixture
def hand_file(tmp_path, monkeypatch):
    """Makes a file of places 0, 1 and 2.5, to which actions of 1 do not lead; the last hand is 0.25 m off."""
    monkeypatch.setattr(module, "watched", lambda make, beat: Hand())

    def make(demos, attrs=({},), size=1, obs="hand_eef_pos"):
        steps, zeros = np.array([[0.0], [1.0], [2.5]]), np.zeros(3)
        hands = np.concatenate([steps, np.zeros((3, 2))], 1)
        hands[2, 2] = 0.25
        path = tmp_path / f"{size}.hdf5"
        with DatasetWriter(path, {"env_name": "x", "type": 2}) as writer:
            for number in range(demos):
                episode = Episode(
                    {obs: hands}, np.ones((3, size)), zeros, zeros, zeros, states=steps
                )
                writer.append_episode(replace(episode, attrs=attrs[number % len(attrs)]))
        return DatasetFile(path)

    return make


def test_a_replay_by_hand(hand_file):
    with hand_file(3, ({"success": True}, {}, {"success": False})) as file:
        found = replay_some(file, {}, 3, backend=Here())
    assert list(found) == ["demo_0", "demo_1", "demo_2"]
    errors = {"obs_error_m": 0.25, "hand_error_m": 0.5, "is_solved": True}
    wanted = [Replay(3, was_solved=was, **errors) for was in (True, False, False)]
    assert list(found.values()) == wanted


@pytest.mark.parametrize(
    ("wanted", "chosen"), [(0, []), (1, [0]), (2, [0, 4]), (3, [0, 2, 4]), (9, [0, 1, 2, 3, 4])]
)
def test_demos_to_check_are_spread_over_the_file(hand_file, wanted, chosen):
    with hand_file(5, obs="x") as file:
        found = replay_some(file, {}, wanted, backend=Here())
    assert list(found) == [f"demo_{number}" for number in chosen]
    assert all(replay.obs_error_m is None for replay in found.values())


def test_a_replay_that_fails_is_named(hand_file):
    words = "demo_0 cannot be played: the node is gone, in 2 tries"
    with hand_file(1) as file, pytest.raises(EnvError, match=words):
        replay_some(file, {}, 1, backend=Here(losses=2))
    words = r"demo_0: actions \(3, 2\) and 3 states do not fit the environment, which takes \(1,"
    with hand_file(1, size=2) as file, pytest.raises(DatasetError, match=words):
        replay_some(file, {}, 1, backend=Here())
