"""Worlds whose rewards mislead: what is learned comes from demonstrations alone."""

import h5py
import numpy as np
import pytest
import torch

from imitate.config.data_needs import Transitions
from imitate.data import DatasetWriter, Episode
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.store import DataSource
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.train.online.demonstrations import load_demonstrations
from imitate.train.online.learners import MixedBuffer, ReplayLearner, RolloutLearner, stacked
from imitate.train.online.normalization import RewardScaler

from .told import SOFT, Told, learns, told_algo, told_collector, told_memory


class Misled(Told):
    """Rewards the opposite of what the demonstrations show."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, -reward, *rest


def write(path, choices):
    """Transitions of the expert of the world, without rewards."""
    rng = np.random.default_rng(0)
    with DatasetWriter(path, {}) as writer:
        for _ in range(20):
            right = rng.integers(2, size=11)
            obs = (2.0 * right - 1.0)[:, None]
            actions = np.eye(2)[right[:10]] if choices else right[:10, None] - 0.5
            zeros = np.zeros(10)
            writer.append_episode(
                Episode({"told": obs[:10]}, actions, zeros, zeros, zeros, {"told": obs[1:]})
            )
    with h5py.File(path, "a") as file:
        for demo in file["data"].values():
            del demo["rewards"]
    return path


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Demonstrations by number of choices."""
    folder = tmp_path_factory.mktemp("told")
    return {choices: write(folder / f"{choices}.hdf5", choices) for choices in (0, 2)}


def demos_of(files, algo, reward_free=True):
    choices = algo.ac_dim if algo.ac_dim > 1 else 0
    needs = algo.global_config.algo.data_needs(algo.global_config)
    words = {"transitions": needs.transitions or Transitions(0.5), "reward": RewardTransform()}
    source, dim = DataSource(files[choices]), algo.ac_dim
    with DataFiles() as opened:
        return load_demonstrations(
            [source], {"told": (1,)}, dim, opened, reward_free=reward_free, **words
        )


def choosing(name):
    section = {"num_choices": 2, "rollout_epochs": 5, "discriminator": {"passes": 5}}
    return told_algo(name, section, choices=2)


def rollout_learner(algo, demos, steps=32, batch_size=64):
    scaler = RewardScaler(RewardTransform(), 4)
    return RolloutLearner(
        algo, rollout_steps=steps, batch_size=batch_size, reward_scaler=scaler, demos=demos
    )


@pytest.mark.later
@pytest.mark.parametrize("name", ["gail", pytest.param("airl", marks=pytest.mark.nightly)])
def test_adversarial_imitation(name, files):
    algo = choosing(name)
    learner = rollout_learner(algo, demos_of(files, algo))
    collector = told_collector(algo, Misled, choices=2, envs=4)
    assert learns(algo, collector, learner, rounds=32, within=0.5, steps=32)


@pytest.mark.later
@pytest.mark.parametrize(
    ("name", "rounds"), [("sqil", 160), pytest.param("dac", 400, marks=pytest.mark.nightly)]
)
def test_imitation_that_replays(name, rounds, files):
    algo = told_algo(name, SOFT)
    memory = told_memory(algo, envs=4)
    mixed = MixedBuffer([(memory, 0.5), (demos_of(files, algo), 0.5)])
    learner = ReplayLearner(algo, memory, mixed, batch_size=32, update_ratio=1, warmup_steps=100)
    collector = told_collector(algo, Misled, envs=4)
    assert learns(algo, collector, learner, rounds=rounds, within=0.2, random_rounds=25)


def test_samples_say_where_they_are_from(files):
    demos = demos_of(files, told_algo("sqil"))
    mixed = MixedBuffer([(demos, 0.25), (demos, 0.75)]).sample(8)
    assert mixed["part"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_others_need_rewards(files):
    with pytest.raises(DatasetError, match="no 'rewards'"):
        demos_of(files, told_algo("sqil"), reward_free=False)


def test_rollouts_have_the_actions_that_were_taken():
    collected = told_collector(choosing("gail"), Misled, choices=2, envs=4).collect(3)
    rollout = stacked(collected.steps)
    assert rollout["actions"].shape == (3, 4, 2)
    np.testing.assert_array_equal(rollout["actions"][1], collected.steps[1].actions)


def test_a_resumed_run_draws_the_same_demonstrations(files):
    algo = choosing("gail")
    first, second = (rollout_learner(algo, demos_of(files, algo), 1, 1) for _ in range(2))
    begun = first.demos.sample(50)["index"]
    second.load_state_dict(first.state_dict())
    again = second.demos.sample(50)["index"]
    assert torch.equal(first.demos.sample(50)["index"], again)
    assert not torch.equal(begun, again)
