"""Worlds whose rewards mislead: what is learned comes from demonstrations alone."""

import h5py
import numpy as np
import pytest
import torch

from imitate import algo_factory, load_config
from imitate.config.data_needs import Transitions
from imitate.data import DatasetWriter, Episode
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.store import DataSource
from imitate.errors import DatasetError
from imitate.online.collector import LocalCollector
from imitate.online.demonstrations import load_demonstrations
from imitate.online.env_group import EnvGroup
from imitate.online.learners import MixedBuffer, ReplayLearner, RolloutLearner, stacked
from imitate.online.normalization import RewardScaler
from imitate.online.replay import ReplayBuffer

from .test_learning import Told


class Misled(Told):
    """Rewards the opposite of what the demonstrations show."""

    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, -reward, *rest


def demonstrations(path, choices):
    """What :class:`Told` wants, without rewards."""
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


def load(path, config, choices, **how):
    return load_demonstrations(
        [DataSource(path)],
        {"told": (1,)},
        choices or 1,
        transitions=config.algo.data_needs(config).transitions,
        reward=RewardTransform(),
        **how,
    )


def make(name, section, choices):
    nets = {"sqil": ["actor", "critic"], "dac": ["actor", "critic", "discriminator"]}.get(
        name, ["policy", "discriminator"]
    )
    rates = {net: {"learning_rate": {"initial": 3e-3}} for net in nets}
    config = load_config(
        {
            "algo_name": name,
            "experiment": {"epoch_every_n_steps": 400},
            "train": {"num_epochs": 1, "batch_size": 32},
            "algo": {**section, "optim_params": rates, "discount": 0.5},
            "observation": {"modalities": {"obs": {"low_dim": ["told"]}}},
        }
    )
    torch.manual_seed(0)
    algo = algo_factory(name, config, {"told": (1,)}, choices or 1)
    group = EnvGroup(lambda: Misled(choices), np.arange(4), seed=0, horizon=10)
    low, high = group.envs[0].action_low, group.envs[0].action_high
    return config, algo, LocalCollector(group, algo, low, high, num_choices=choices)


def decided(algo):
    algo.set_eval()
    told = {"told": torch.tensor([[-1.0], [1.0]])}
    with torch.no_grad():
        return algo.act(told, algo.initial_state(2)).action


@pytest.mark.parametrize("name", ["gail", "airl"])
def test_adversarial_imitation(name, tmp_path):
    section = {"num_choices": 2, "rollout_epochs": 5, "discriminator": {"passes": 5}}
    _, algo, collector = make(name, section, choices=2)
    learner = RolloutLearner(
        algo,
        rollout_steps=32,
        batch_size=64,
        reward_scaler=RewardScaler(RewardTransform(), 4),
        demos=load_demonstrations(
            [DataSource(demonstrations(tmp_path / "d.hdf5", 2))],
            {"told": (1,)},
            2,
            transitions=Transitions(0.5),
            reward=RewardTransform(),
            reward_free=True,
        ),
    )
    algo.set_train()
    for _ in range(25):
        learner.take(collector.collect(32))
        for _ in learner.updates_due(1):
            pass
    assert decided(algo).argmax(-1).tolist() == [0, 1]


@pytest.mark.parametrize(("name", "rounds"), [("sqil", 130), ("dac", 300)])
def test_imitation_that_replays(name, rounds, tmp_path):
    section = {
        "actor": {"layer_dims": [32]},
        "critic": {"layer_dims": [32]},
        "temperature": {"initial": 0.02},
    }
    config, algo, collector = make(name, section, choices=0)
    demos = load(demonstrations(tmp_path / "d.hdf5", 0), config, 0, reward_free=True)
    memory = ReplayBuffer(
        {"told": (1,)}, 1, 5000, num_envs=4, transitions=config.algo.data_needs(config).transitions
    )
    learner = ReplayLearner(
        algo,
        memory,
        MixedBuffer([(memory, 0.5), (demos, 0.5)]),
        batch_size=32,
        update_ratio=1,
        warmup_steps=100,
    )
    algo.set_train()
    for number in range(rounds):
        learner.take(collector.collect(1, random=number < 25))
        for _ in learner.updates_due(1):
            pass
    np.testing.assert_allclose(decided(algo)[:, 0], [-0.5, 0.5], atol=0.2)


def test_samples_say_where_they_are_from(tmp_path):
    config, _, _ = make("sqil", {}, choices=0)
    demos = load(demonstrations(tmp_path / "d.hdf5", 0), config, 0, reward_free=True)
    mixed = MixedBuffer([(demos, 0.25), (demos, 0.75)]).sample(8)
    assert mixed["part"].tolist() == [0, 0, 1, 1, 1, 1, 1, 1]


def test_others_need_rewards(tmp_path):
    config, _, _ = make("sqil", {}, choices=0)
    with pytest.raises(DatasetError, match="no 'rewards'"):
        load(demonstrations(tmp_path / "d.hdf5", 0), config, 0)


def test_rollouts_have_the_actions_that_were_taken():
    _, _, collector = make("gail", {"num_choices": 2}, choices=2)
    collected = collector.collect(3)
    rollout = stacked(collected.steps)
    assert rollout["actions"].shape == (3, 4, 2)
    np.testing.assert_array_equal(rollout["actions"][1], collected.steps[1].actions)


def test_a_resumed_run_draws_the_same_demonstrations(tmp_path):
    path = demonstrations(tmp_path / "d.hdf5", 2)
    _, algo, _ = make("gail", {"num_choices": 2}, choices=2)

    def learner():
        demos = load_demonstrations(
            [DataSource(path)],
            {"told": (1,)},
            2,
            transitions=Transitions(0.5),
            reward=RewardTransform(),
            reward_free=True,
        )
        scaler = RewardScaler(RewardTransform(), 1)
        return RolloutLearner(
            algo, rollout_steps=1, batch_size=1, reward_scaler=scaler, demos=demos
        )

    first, second = learner(), learner()
    begun = first.demos.sample(50)["index"]
    second.load_state_dict(first.state_dict())
    again = second.demos.sample(50)["index"]
    assert torch.equal(first.demos.sample(50)["index"], again)
    assert not torch.equal(begun, again)
