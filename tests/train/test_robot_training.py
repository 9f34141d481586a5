"""Trainings and evaluations on a robot as an environment: a simulated one whose time stands still between actions."""

import h5py
import numpy as np
import pytest

from imitate import load_config
from imitate.deploy.robot import robot_env
from imitate.deploy.robot.robot import Guidance, Teleoperator
from imitate.envs import make_env
from imitate.errors import EnvError, RobotError, RobotStoppedError, UserError
from imitate.evaluate.environments import named_env
from imitate.evaluate.evaluate import EvalSettings, evaluate
from imitate.policy.checkpoint import control_freq_of
from imitate.system.trust import trust
from imitate.train.interactive.dagger import DaggerPlan, dagger
from imitate.train.interactive.supervision import TakesOver
from imitate.train.online.learners import Corrected
from imitate.train.trainer import train
from tests.demo_files import episode, write_demos
from tests.refusals import refused
from tests.tiny import tiny_config

from .conftest import PENDULUM, last, online_tree, records, stored_steps

HERE = "tests.train.test_robot_training"


def robot(**kwargs):
    meta = named_env("robot:sim:Pendulum-v1")
    meta["env_kwargs"]["options"]["in_step"] = True
    meta["env_kwargs"].update(kwargs)
    return meta


@pytest.fixture(autouse=True)
def trusted(monkeypatch):
    monkeypatch.setenv("IMITATE_TRUST_MODULES", f"{HERE},{HERE}:Pushing")


class Pushing(Teleoperator):
    """A person who pushes by 0.95 in each fourth step of an episode."""

    def __init__(self):
        self.step = 0

    def start_episode(self):
        self.step = 0

    def guide(self, observation):
        self.step += 1
        return Guidance(np.array([0.95]) if self.step % 4 == 0 else None)


class Quitting(Pushing):
    """A person who quits in the 30th step."""

    def guide(self, observation):
        self.step += 1
        return Guidance(events=frozenset({"quit"} if self.step == 30 else ()))


def reward(obs, action):
    """Upright is good."""
    return float(obs["flat"][0])


class Discarding(Teleoperator):
    """A person who discards the first episode."""

    episodes = 0

    def start_episode(self):
        type(self).episodes += 1

    def guide(self, observation):
        discards = type(self).episodes == 1
        return Guidance(events=frozenset({"discard"} if discards else ()))


def demonstrations(path):
    rng = np.random.default_rng(0)
    seen = [rng.normal(size=(12, 3)).astype(np.float32) for _ in range(3)]
    made = [episode(12, {"flat": x}, 0.9 * np.tanh(x[:, :1]), "terminal") for x in seen]
    return write_demos(path, made, PENDULUM, control_freq=20.0)


def online(tmp_path, algo="sac", **changes):
    tree = online_tree(
        algo,
        online={"env": robot(), "warmup_steps": 20},
        experiment={"epoch_every_n_steps": 40, "rollout": {"horizon": 20}},
        train={"batch_size": 8, "num_epochs": 2, "output_dir": str(tmp_path / "runs")},
    )
    return load_config(tree).with_overrides(changes)


# ---- online --------------------------------------------------------------------------------------


def test_a_training_learns_on_a_robot_and_stores_what_was_executed(tmp_path):
    env = robot(take_over=f"{HERE}:Pushing", reward=f"{HERE}:reward")
    config = online(tmp_path, **{"train.online.env": env})
    result = train(config, quiet=True)
    rows = {key: value.numpy() for key, value in stored_steps(result)["rows"].items()}
    steps = np.flatnonzero(rows["live"])
    assert len(steps) == 80
    number = rows["number"][steps]
    by_person = rows["intervened"][steps]
    np.testing.assert_array_equal(by_person, number % 4 == 3)
    np.testing.assert_allclose(rows["actions"][steps[by_person], 0], 0.95)
    assert not np.isin(rows["actions"][steps[~by_person], 0], 0.95).any()
    following = rows["vectors"][steps + 1, 0]
    np.testing.assert_allclose(rows["rewards"][steps], following, atol=1e-6)
    assert records(result)[-1]["Metrics/AverageEnvInfo[interventions]"] == 5.0
    assert control_freq_of(last(result)) == 20.0


def test_rlpd_learns_from_corrections_as_from_demonstrations(tmp_path, monkeypatch):
    drawn, sample = [], Corrected.sample

    def noted(self, size):
        batch = sample(self, size)
        drawn.extend(batch["actions"].numpy().ravel().tolist())
        return batch

    monkeypatch.setattr(Corrected, "sample", noted)
    changes = {
        "train.data": str(demonstrations(tmp_path / "demos.hdf5")),
        "train.online.env": robot(take_over=f"{HERE}:Pushing"),
        "algo.critic.ensemble.n": 2,
    }
    train(online(tmp_path, "rlpd", **changes), quiet=True)
    assert 0 < np.isclose(drawn, 0.95).mean() < 0.5


def test_a_robot_that_is_stopped_ends_a_training_that_resumes(tmp_path):
    changes = {"train.online.env": robot(take_over=f"{HERE}:Quitting"), "train.online.horizon": 200}
    with refused("quit|--resume", error=RobotStoppedError):
        train(online(tmp_path, **changes), quiet=True)
    (folder,) = (tmp_path / "runs").glob("online/*")
    assert last(folder)["train_state"]["step"] == 29


PUSHING = robot(take_over=f"{HERE}:Pushing")


@pytest.mark.parametrize(
    ("algo", "changes", "words"),
    [
        ("sac", {"train.online.num_envs": 2}, "num_envs: 2, but robot:sim:Pendulum-v1 is a single"),
        ("sac", {"train.online.num_workers": 1}, "train.online.num_workers: 1"),
        ("ppo", {"train.online.env": PUSHING}, "own actions alone"),
    ],
)
def test_one_robot_is_one_robot(tmp_path, algo, changes, words):
    with refused(words, error=UserError):
        train(online(tmp_path, algo, **changes), quiet=True)


# ---- evaluation ----------------------------------------------------------------------------------


def bc(folder, demos=None):
    return tiny_config(
        obs={"flat": 3},
        data=demos,
        experiment={"epoch_every_n_steps": 20, "rollout": {"horizon": 15}},
        train={"output_dir": str(folder / "runs"), "num_epochs": 1},
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    return train(bc(folder, demonstrations(folder / "demos.hdf5")), quiet=True).checkpoint


def test_an_evaluation_on_a_simulated_robot_is_that_of_its_environment(checkpoint):
    settings = {"episodes": 3, "horizon": 12, "seed": 4}
    plain = evaluate(checkpoint, PENDULUM, EvalSettings(**settings))
    on_robot = evaluate(checkpoint, robot(), EvalSettings(step_timeout_s=60.0, **settings))
    np.testing.assert_allclose(
        [e.episode_return for e in on_robot.episodes], [e.episode_return for e in plain.episodes]
    )


@pytest.mark.parametrize(
    ("robot_keys", "settings", "words"),
    [
        ({}, {"episodes": 2, "workers": 2}, "a single robot, controlled by this process"),
        ({}, {"episodes": 2, "mode": "vector"}, "a single robot, controlled by this process"),
        ({"control_freq": 50}, {}, "the rate is 50 Hz, but the demonstrations have 20 Hz"),
    ],
)
def test_what_one_robot_cannot_do_is_refused(checkpoint, robot_keys, settings, words):
    with refused(words, error=UserError):
        evaluate(checkpoint, robot(**robot_keys), EvalSettings(**{"episodes": 1, **settings}))


def test_a_safety_stop_ends_an_evaluation_and_keeps_what_was_measured(checkpoint, monkeypatch):
    played, reset = [], robot_env.RobotEnv.reset

    def stopped(self, **rest):
        played.append(1)
        if len(played) == 3:
            raise RobotError("the watchdog fired")
        return reset(self, **rest)

    monkeypatch.setattr(robot_env.RobotEnv, "reset", stopped)
    result = evaluate(checkpoint, robot(), EvalSettings(episodes=5, horizon=4))
    assert len(played) == 3  # nothing moved after it
    assert [bool(episode.error) for episode in result.episodes] == [False, False, True]
    assert "watchdog" in result.warnings[0]


def test_a_robot_in_a_file_is_no_environment_to_play_in(monkeypatch):
    monkeypatch.setenv("IMITATE_TRUST_MODULES", "")
    with refused("a file names this robot", error=EnvError):
        make_env({"env_name": "robot:my_arm", "type": 4, "env_kwargs": {}})


# ---- DAgger --------------------------------------------------------------------------------------


def corrected(tmp_path, person, horizon):
    """A round of two episodes with a person at a device of the robot; its progress and its file."""
    progress = dagger(
        bc(tmp_path),
        DaggerPlan(rounds=1, episodes=2, horizon=horizon),
        lambda number: TakesOver(lambda obs, wanted: None),
        robot(take_over=f"{HERE}:{person}"),
        tmp_path / "out",
        dataset=demonstrations(tmp_path / "demos.hdf5"),
        labels_all=False,
    )
    return progress, tmp_path / "out/demos.hdf5"


def test_dagger_learns_from_a_person_at_a_device_of_the_robot(tmp_path):
    progress, path = corrected(tmp_path, "Pushing", 10)
    assert progress.rounds[1].interventions == 4
    with h5py.File(path) as file:
        demo = {key: file["data/demo_4"][key][()] for key in WRITTEN}
    by_person = demo["interventions"].astype(bool)
    np.testing.assert_array_equal(np.flatnonzero(by_person), [3, 7])
    np.testing.assert_allclose(demo["actions"][by_person], 0.95)
    np.testing.assert_allclose(demo["executed_actions"][by_person], 0.95)
    assert (np.abs(demo["policy_actions"][by_person] - 0.95) > 1e-3).all()
    np.testing.assert_array_equal(demo["labelled"].astype(bool), by_person)


WRITTEN = ("interventions", "actions", "executed_actions", "policy_actions", "labelled")


def test_an_episode_that_a_person_discards_is_played_again(tmp_path):
    trust(f"{HERE}:Discarding")
    Discarding.episodes = 0
    _, path = corrected(tmp_path, "Discarding", 6)
    with h5py.File(path) as file:
        assert len(file["data"]) == 5
    assert Discarding.episodes == 3
