"""Trainings and evaluations on a robot as an environment: a simulated one whose time stands still between actions."""

import json

import h5py
import numpy as np
import pytest

from imitate import load_config
from imitate.data import DatasetWriter, Episode
from imitate.deploy.robot import Guidance, RobotError, Teleoperator
from imitate.envs import make_env
from imitate.envs.trust import trust
from imitate.errors import ConfigError, EnvError, RobotStoppedError
from imitate.evaluation.environments import named_env
from imitate.evaluation.evaluate import evaluate
from imitate.interactive.dagger import DaggerPlan, dagger
from imitate.interactive.supervision import TakesOver
from imitate.policy.checkpoint import control_freq_of, load_checkpoint
from imitate.train.trainer import train

HERE = "tests.train.test_robot_training"
PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


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


def demonstrations(path, env_meta=PENDULUM, number=3, length=12):
    rng = np.random.default_rng(0)
    with DatasetWriter(path, env_meta, control_freq=20.0) as writer:
        for _ in range(number):
            flat = rng.normal(size=(length, 3)).astype(np.float32)
            ends = np.arange(length) == length - 1
            writer.append_episode(
                Episode(
                    {"flat": flat}, 0.9 * np.tanh(flat[:, :1]), np.zeros(length), ends, ~ends & ends
                )
            )
    return path


def online(tmp_path, algo="sac", **changes):
    return load_config(
        {
            "algo_name": algo,
            "experiment": {
                "name": "robot",
                "epoch_every_n_steps": 40,
                "save": {"on_best_rollout_success_rate": False},
                "rollout": {"horizon": 20},
            },
            "train": {
                "online": {"enabled": True, "env": robot(), "warmup_steps": 20},
                "batch_size": 8,
                "num_epochs": 2,
                "num_threads": 1,
                "output_dir": str(tmp_path / "runs"),
            },
            "algo": {"actor": {"layer_dims": [8]}, "critic": {"layer_dims": [8]}},
            "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
        }
    ).with_overrides(changes)


def stored(result):
    import torch

    memory = result.run_dir / "checkpoints/memory_80.pt"
    return {key: value.numpy() for key, value in torch.load(memory)["rows"].items()}


# ---- online --------------------------------------------------------------------------------------


def test_a_training_learns_on_a_robot_and_stores_what_was_executed(tmp_path):
    env = robot(take_over=f"{HERE}:Pushing", reward=f"{HERE}:reward")
    config = online(tmp_path, **{"train.online.env": env})
    result = train(config, quiet=True)
    rows = stored(result)
    steps = np.flatnonzero(rows["live"])
    assert len(steps) == 80
    number = rows["number"][steps]
    by_person = rows["intervened"][steps]
    np.testing.assert_array_equal(by_person, number % 4 == 3)
    np.testing.assert_allclose(rows["actions"][steps[by_person], 0], 0.95)
    assert not np.isin(rows["actions"][steps[~by_person], 0], 0.95).any()
    following = rows["vectors"][steps + 1, 0]
    np.testing.assert_allclose(rows["rewards"][steps], following, atol=1e-6)
    last = json.loads((result.run_dir / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["Metrics/AverageEnvInfo[interventions]"] == 5.0
    assert control_freq_of(load_checkpoint(result.checkpoint)) == 20.0


def test_rlpd_learns_from_corrections_as_from_demonstrations(tmp_path, monkeypatch):
    from imitate.online.corrections import Corrected

    drawn = []
    sample = Corrected.sample

    def noted(self, size):
        batch = sample(self, size)
        drawn.extend(batch["actions"].numpy().ravel().tolist())
        return batch

    monkeypatch.setattr(Corrected, "sample", noted)
    config = online(
        tmp_path,
        "rlpd",
        **{
            "train.data": str(demonstrations(tmp_path / "demos.hdf5")),
            "train.online.env": robot(take_over=f"{HERE}:Pushing"),
            "algo.critic.ensemble.n": 2,
        },
    )
    train(config, quiet=True)
    assert 0 < np.isclose(drawn, 0.95).mean() < 0.5


def test_a_robot_that_is_stopped_ends_a_training_that_resumes(tmp_path):
    config = online(tmp_path, **{"train.online.env": robot(take_over=f"{HERE}:Quitting")})
    config = config.with_overrides({"train.online.horizon": 200})
    with pytest.raises(RobotStoppedError, match=r"quit.*--resume"):
        train(config, quiet=True)
    (last,) = (tmp_path / "runs").glob("robot/*/checkpoints/last.pth")
    assert load_checkpoint(last)["train_state"]["step"] == 29


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"train.online.num_envs": 2},
            "train.online.num_envs: 2, but robot:sim:Pendulum-v1 is one",
        ),
        ({"train.online.num_workers": 1}, "train.online.num_workers: 1"),
        (
            {"train.online.env": robot(take_over=f"{HERE}:Pushing"), "algo_name": "ppo"},
            "own actions alone",
        ),
    ],
)
def test_one_robot_is_one_robot(tmp_path, changes, words):
    config = online(tmp_path)
    tree = config.to_dict()
    if "algo_name" in changes:
        tree["algo"] = {"actor_layer_dims": [8]}
        tree = {key: tree[key] for key in ("experiment", "observation")}
        tree["algo_name"] = changes.pop("algo_name")
        tree["train"] = {"online": {"env": None}, "output_dir": str(tmp_path)}
        config = load_config(tree)
    with pytest.raises(ConfigError, match=words):
        train(config.with_overrides(changes), quiet=True)


# ---- evaluation ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("policy")
    demos = demonstrations(folder / "demos.hdf5")
    return train(bc(folder, demos), quiet=True).checkpoint


def bc(folder, demos, epochs=1):
    return load_config(
        {
            "algo_name": "bc",
            "experiment": {
                "name": "bc",
                "epoch_every_n_steps": 20,
                "rollout": {"enabled": False, "horizon": 15},
                "save": {"on_best_rollout_success_rate": False},
            },
            "train": {
                "data": str(demos),
                "output_dir": str(folder / "runs"),
                "num_epochs": epochs,
                "batch_size": 16,
                "num_threads": 1,
            },
            "algo": {"actor_layer_dims": [16]},
            "observation": {"modalities": {"obs": {"low_dim": ["flat"]}}},
        }
    )


def test_an_evaluation_on_a_simulated_robot_is_that_of_its_environment(checkpoint):
    settings = {"episodes": 3, "horizon": 12, "seed": 4}
    plain = evaluate(checkpoint, PENDULUM, **settings)
    on_robot = evaluate(checkpoint, robot(), step_timeout_s=60.0, **settings)
    np.testing.assert_allclose(
        [e.episode_return for e in on_robot.episodes], [e.episode_return for e in plain.episodes]
    )


def test_one_robot_has_no_workers(checkpoint):
    with pytest.raises(EnvError, match="one robot, driven by this process"):
        evaluate(checkpoint, robot(), episodes=2, workers=2)
    with pytest.raises(EnvError, match="one robot, driven by this process"):
        evaluate(checkpoint, robot(), episodes=2, mode="vector")


def test_a_policy_of_another_rate_is_refused(checkpoint):
    with pytest.raises(
        ConfigError.__base__, match="the rate is 50 Hz, but that of the demonstrations is 20 Hz"
    ):
        evaluate(checkpoint, robot(control_freq=50), episodes=1)


def test_a_safety_stop_ends_an_evaluation_and_keeps_what_was_measured(checkpoint, monkeypatch):
    from imitate.deploy import robot_env

    played = []
    reset = robot_env.RobotEnv.reset

    def stopped(self, **rest):
        played.append(1)
        if len(played) == 3:
            raise RobotError("the watchdog fired")
        return reset(self, **rest)

    monkeypatch.setattr(robot_env.RobotEnv, "reset", stopped)
    result = evaluate(checkpoint, robot(), episodes=5, horizon=4)
    assert len(played) == 3  # nothing moved after it
    assert [bool(episode.error) for episode in result.episodes] == [False, False, True]
    assert "watchdog" in result.warnings[0]


# ---- DAgger --------------------------------------------------------------------------------------


def test_dagger_learns_from_a_person_at_a_device_of_the_robot(tmp_path):
    demos = demonstrations(tmp_path / "demos.hdf5")
    meta = robot(take_over=f"{HERE}:Pushing")
    config = bc(tmp_path, demos).with_overrides({"train.data": None})
    progress = dagger(
        config,
        DaggerPlan(rounds=1, episodes=2, horizon=10),
        lambda number: TakesOver(lambda obs, wanted: None),
        meta,
        tmp_path / "out",
        dataset=demos,
        labels_all=False,
    )
    assert progress.rounds[1].interventions == 4
    with h5py.File(tmp_path / "out/demos.hdf5") as file:
        demo = file["data/demo_4"]
        by_person = demo["interventions"][()].astype(bool)
        np.testing.assert_array_equal(np.flatnonzero(by_person), [3, 7])
        np.testing.assert_allclose(demo["actions"][by_person], 0.95)
        np.testing.assert_allclose(demo["executed_actions"][by_person], 0.95)
        assert (np.abs(demo["policy_actions"][by_person] - 0.95) > 1e-3).all()
        np.testing.assert_array_equal(demo["labelled"][()].astype(bool), by_person)


def test_an_episode_that_a_person_discards_is_played_again(tmp_path):
    demos = demonstrations(tmp_path / "demos.hdf5")
    trust(f"{HERE}:Discarding")
    Discarding.episodes = 0
    dagger(
        bc(tmp_path, demos).with_overrides({"train.data": None}),
        DaggerPlan(rounds=1, episodes=2, horizon=6),
        lambda number: TakesOver(lambda obs, wanted: None),
        robot(take_over=f"{HERE}:Discarding"),
        tmp_path / "out",
        dataset=demos,
        labels_all=False,
    )
    with h5py.File(tmp_path / "out/demos.hdf5") as file:
        assert len(file["data"]) == 5
    assert Discarding.episodes == 3


class Discarding(Teleoperator):
    """A person who discards the first episode."""

    episodes = 0

    def start_episode(self):
        type(self).episodes += 1

    def guide(self, observation):
        discards = type(self).episodes == 1
        return Guidance(events=frozenset({"discard"} if discards else ()))


def test_a_robot_in_a_file_is_no_environment_to_play_in(checkpoint, monkeypatch):
    monkeypatch.setenv("IMITATE_TRUST_MODULES", "")
    with pytest.raises(EnvError, match="a file names this robot"):
        make_env({"env_name": "robot:my_arm", "type": 4, "env_kwargs": {}})
