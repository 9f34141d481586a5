"""Critics that see more than the actor: the group `critic` of observations, from data to what acts."""

import zipfile

import numpy as np
import pytest
import torch

from imitate import load_config, policy_from_checkpoint
from imitate.data.batches.rewards import RewardTransform
from imitate.deploy.bundle.exporting import export_policy
from imitate.errors import CheckpointError, ConfigError
from imitate.interop.robomimic.exporting import check_exportable
from imitate.policy.checkpoint import acting_only, algo_from_checkpoint, checkpoint_dict
from imitate.system.run_folder import RunFolder
from imitate.train.interactive.dagger import DaggerPlan, dagger
from imitate.train.observations import with_observations
from imitate.train.online.central.collector import CentralCollector
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import ReplayLearner, RolloutLearner
from imitate.train.online.normalization import RewardScaler
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.workers import acting_weights
from tests.cli.test_info import info, report_of
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_batch, tiny_config, tiny_demos, tiny_run

from .worlds import Line

COIN, OBS = {"coin": 1}, {"place", "coin"}
RATE = {"learning_rate": {"initial": 0.02}}


class Coin(Line):
    """The reward is a coin of 1 or -1, which is thrown anew before each step; the place shows nothing of it."""

    action_low, action_high = np.array([-1.0]), np.array([1.0])

    def obs(self):
        self.coin = 1.0 if hash((self.place, self.steps)) % 2 else -1.0
        return {"place": np.zeros(1), "coin": np.array([self.coin])}

    def step(self, action):
        coin = self.coin
        obs, _, *rest = super().step(action)
        return obs, coin, *rest


def coin_algo(name, critic=COIN, *overrides, **words):
    nets = vars(load_config({"algo_name": name}).algo.optim_params)
    section = {"optim_params": dict.fromkeys(nets, RATE)}
    section |= {} if name == "bc" else {"discount": 0.0}
    words = {"obs": {"place": 1}, "critic": critic, "algo": section, **words}
    return tiny_algo(name, *overrides, **words)


def value_loss(name, critic, updates=120):
    """The loss of the values of coins after some updates, on new ones; without the coin at least 1 is left."""
    algo = coin_algo(name, critic)
    generator = torch.Generator().manual_seed(0)
    for _ in range(updates):
        coin = torch.randint(2, (64, 1), generator=generator) * 2.0 - 1.0
        obs = {"place": torch.zeros(64, 1, 1), "coin": coin.unsqueeze(1)}
        ends = {"discounts": torch.zeros(64), "n_step_rewards": coin[:, 0], "returns": coin}
        batch = tiny_batch(algo, 64, obs=obs, next_obs=obs, values=torch.zeros(64, 1), **ends)
        info = algo.train_on_batch(algo.process_batch_for_training(batch), 1)
    found = info["Value_Loss"] if "Value_Loss" in info else info["Critic_Loss"] / 2
    return float(found)


@pytest.mark.parametrize("name", ["sac", "iql", "td3_bc", "a2c"])
def test_values_depend_on_what_the_actor_does_not_see(name):
    assert value_loss(name, COIN) < 0.1
    assert value_loss(name, (), updates=20) > 0.8


def collected(algo, steps):
    group = EnvGroup(Coin, np.arange(4), seed=0, horizon=8)
    return LocalCollector(group, algo, Coin.action_low, Coin.action_high).collect(steps)


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_what_an_environment_shows_reaches_the_critics(name):
    sequences = ["algo.rnn.enabled=true", "train.seq_length=4"] if name == "ppo" else []
    algo = coin_algo(name, COIN, *sequences)
    if name == "sac":
        wanted = algo.config.data_needs(algo.global_config).transitions
        memory = ReplayBuffer({"coin": (1,), "place": (1,)}, 1, 400, num_envs=4, transitions=wanted)
        options = {"batch_size": 32, "update_ratio": 0.5, "warmup_steps": 0}
        learner = ReplayLearner(algo, memory, memory, **options)
    else:
        scaler = RewardScaler(RewardTransform(), 4)
        learner = RolloutLearner(algo, rollout_steps=64, batch_size=64, reward_scaler=scaler)
    group = EnvGroup(Coin, np.arange(4), seed=0, horizon=8)
    collector = LocalCollector(group, algo, Coin.action_low, Coin.action_high)
    learner.take(collector.collect(64))
    *_, last = learner.updates_due(1)
    assert float(last["Value_Loss"] if name == "ppo" else last["Critic_Loss"] / 2) < 0.3


@pytest.mark.parametrize("name", ["td3", "ppo"])
def test_workers_get_no_critics_and_store_what_these_see(name, collectors, kind):
    algo = coin_algo(name)
    sent = {key for net in acting_weights(algo)["nets"].values() for key in net}
    assert not any(key.startswith(("value", "more", "encoders")) for key in sent)
    if kind is CentralCollector and name == "ppo":
        assert set(acting_weights(coin_algo(name, ()))["nets"]["policy"]) > sent
    step = collectors(Coin, algo=algo, kind=kind).collect(3).steps[0]
    assert {key: value.shape for key, value in step.obs.items()} == dict.fromkeys(OBS, (1, 1))
    assert step.next_obs.keys() == OBS


@pytest.mark.parametrize("name", ["iql", "td3_bc"])
def test_a_policy_of_a_file_neither_asks_for_it_nor_takes_it_along(name, tmp_path):
    data = tiny_demos(tmp_path / "demos.hdf5", {"place": 1, "coin": 1})
    words = {"obs": {"place": 1}, "critic": COIN, "train": {"obs_normalization": "mean_std"}}
    path = RunFolder(tiny_run(tmp_path, name, data=data, **words)).last
    policy, ckpt = policy_from_checkpoint(ckpt_path=path, device="cpu")
    assert policy.obs_keys == ("place",) and policy.raw_shapes.keys() == {"place"}
    policy.start_episode()
    wanted = policy({"place": np.ones(1)})
    assert report_of(path)["critic_keys"] == ["coin"]
    assert "coin         1, seen only by critics" in info(path).stdout
    part = acting_only(ckpt)
    assert not any("critic" in key or "vf" in key for key in part["model"]["nets"])
    alone, _ = policy_from_checkpoint(ckpt_dict=part, device="cpu")
    alone.start_episode()
    assert np.array_equal(alone({"place": np.ones(1)}), wanted)
    export_policy(policy, tmp_path / "bundle.zip")
    with zipfile.ZipFile(tmp_path / "bundle.zip") as bundle:
        assert not any(b"coin" in bundle.read(name) for name in bundle.namelist())
    with refused("observation.modalities.critic", error=CheckpointError):
        check_exportable(policy.algo, "0.5")


def test_a_policy_of_rollouts_leaves_its_value_behind():
    algo = coin_algo("ppo")
    whole = checkpoint_dict(algo, env_metadata={}, shape_metadata={})
    part = acting_only(whole)
    left = {key.split(".")[1] for key in whole["model"]["nets"].keys() - part["model"]["nets"]}
    assert left == {"value", "value_head"}
    algos, obs = [algo_from_checkpoint(ckpt) for ckpt in (whole, part)], {"place": torch.ones(1, 1)}
    assert torch.equal(*(each.act(obs, each.initial_state(1)).action for each in algos))


def test_auto_lists_what_the_actor_does_not_see(tmp_path):
    data = tiny_demos(tmp_path / "demos.hdf5", {"place": 1, "coin": 1})
    config = tiny_config("iql", obs={"place": 1}, critic=["auto"], data=data)
    assert with_observations(config).observation.modality_of("critic") == {"coin": "low_dim"}


@pytest.mark.parametrize(("name", "overrides", "words"), [
    ("bc", [], "critic lists coin|bc|it has no critics that see them|list them in obs"),
    ("ibrl", [], "critic lists coin|ibrl|its critics are needed to act"),
    ("sac", ["algo.rnn.enabled=true", "train.seq_length=4"], "critic lists coin|algo.rnn.enabled|set it to false"),
    ("sac", ['algo.dynamics={"type": "ensemble"}'], "critic lists coin|algo.dynamics|set it to null"),
    ("sac", ['observation.modalities.obs.low_dim=["coin"]'], "'coin' is listed in 'obs' and in 'critic'"),
])  # fmt: skip
def test_what_does_not_go_together_is_refused(name, overrides, words):
    with refused(words, error=ConfigError):
        coin_algo(name, COIN, *overrides)


def test_rounds_of_corrections_refuse_it(tmp_path):
    config = tiny_config("iql", obs={"place": 1}, critic=COIN)
    with refused("critic lists coin|leave it empty", error=ConfigError):
        dagger(config, DaggerPlan(), None, {}, tmp_path, dataset="demos.hdf5")
