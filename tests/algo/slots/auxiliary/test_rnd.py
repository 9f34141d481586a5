"""Random network distillation: the bonus by hand, and as JSON for algorithms of every kind."""

import numpy as np
import pytest
import torch

from imitate.algo.slots.auxiliary import AuxiliaryContext
from imitate.algo.slots.rnd import RND, RNDConfig
from imitate.data.batches.rewards import RewardTransform
from imitate.errors import ConfigError
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import RolloutLearner
from imitate.train.online.normalization import RewardScaler
from tests.tiny import tiny_algo


def make_rnd(**settings):
    torch.manual_seed(0)
    algo = tiny_algo("bc", obs={"s": 2}, action=1)
    return RND(RNDConfig(type="rnd", **settings), AuxiliaryContext(algo.encoding, 1, 0, algo.nets))


def batch(states):
    states = torch.as_tensor(states, dtype=torch.float32)
    return {"next_obs": {"s": states}, "actions": torch.zeros(len(states), 1)}


def test_loss_and_reward_by_hand():
    rnd = make_rnd(layer_dims=(), num_features=2)
    for net, weight in ((rnd.target, [[1.0, 0.0], [0.0, 2.0]]), (rnd.predictor, [[0.0, 0.0]] * 2)):
        net[1].weight.data = torch.tensor(weight)
        net[1].bias.data.zero_()
    # Features (3, 8) are not predicted: (9 + 64) / 2; inputs beyond 5 are clipped to it: (25 + 100) / 2.
    data = batch([[3.0, 4.0], [50.0, -50.0]])
    assert rnd.loss(data)[0].item() == pytest.approx((36.5 + 62.5) / 2)
    # Relative to their own mean before the first update, then to the moving mean; at most 5.
    assert rnd.reward(data).tolist() == pytest.approx([36.5 / 49.5, 62.5 / 49.5])
    rnd.relative.add(torch.tensor([10.0, 30.0]))
    assert rnd.reward(data).tolist() == pytest.approx([36.5 / 20, 62.5 / 20])
    rnd.relative.mean.fill_(2.0)
    assert rnd.reward(data).tolist() == [5.0, 5.0]
    rnd.relative.add(torch.tensor([4.0]))
    assert rnd.relative.mean.item() == pytest.approx(2.0 + 0.01 * 2.0)
    rnd.relative.mean.fill_(2.0)
    rnd.inputs.add(
        torch.tensor([[1.0, 0.0], [5.0, 8.0]])
    )  # means 3 and 4, standard deviations 2 and 4
    assert rnd.reward(batch([[5.0, 8.0]])).tolist() == pytest.approx([(1 + 4) / 2 / 2])


def test_only_the_predictor_learns():
    rnd = make_rnd()
    rnd.loss(batch(np.ones((4, 2))))[0].backward()
    assert all(p.grad is not None for p in rnd.predictor.parameters())
    assert not any(p.requires_grad for p in rnd.target.parameters())
    assert not rnd.reward(batch(np.ones((4, 2)))).requires_grad


def test_what_is_new_is_worth_more_than_what_was_often_seen():
    rnd = make_rnd(layer_dims=(32,))
    optimizer = torch.optim.Adam(rnd.predictor.parameters(), 3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        seen = batch(torch.rand(64, 2, generator=generator))
        optimizer.zero_grad()
        rnd.loss(seen)[0].backward()
        optimizer.step()
        rnd.follow(seen)
    often = rnd.reward(batch(torch.rand(200, 2, generator=generator))).mean()
    new = rnd.reward(batch(torch.rand(200, 2, generator=generator) + 1.5)).mean()
    assert new > 5 * often


def test_a_state_without_any_error_has_no_bonus():
    rnd = make_rnd()
    rnd.predictor.load_state_dict(rnd.target.state_dict())
    assert rnd.reward(batch(np.ones((2, 2)))).tolist() == [0.0, 0.0]


ALGORITHMS = {
    "sac": {},
    "td3": {"actor": {"update_freq": 1}},
    "dqn": {"num_choices": 2},
    "ppo": {"num_choices": 0, "rollout_epochs": 1},
}


def make_algo(name, **novelty):
    section = {"auxiliary": {"novelty": {"type": "rnd", "reward": 0.5, **novelty}}}
    train = {"batch_size": 8, "online": {"enabled": True, "env": "Pendulum-v1"}}
    words = {"hidden": [8], "algo": {**ALGORITHMS[name], **section}, "train": train}
    return tiny_algo(name, obs={"s": 2}, action=2, **words)


def raw_transitions(size=8):
    states = torch.randn(2, size, 1, 2, generator=torch.Generator().manual_seed(0))
    return {
        "obs": {"s": states[0]},
        "next_obs": {"s": states[1]},
        "actions": torch.eye(2)[torch.arange(size) % 2].unsqueeze(1),
        "rewards": torch.zeros(size, 1),
        "n_step_rewards": torch.zeros(size),
        "discounts": torch.zeros(size),
    }


@pytest.mark.parametrize("name", ["sac", "td3", "dqn"])
def test_critics_learn_the_bonus_and_the_predictor_the_states(name):
    algo = make_algo(name)
    rnd = algo.auxiliaries["auxiliary/novelty"]
    data = algo.process_batch_for_training(raw_transitions())
    first = rnd.predictor[1].weight.clone()
    algo.set_train()
    info = algo.train_on_batch(data, 1)
    # The rewards of the environment are 0, and the predictor has made its step before.
    bonus = info["auxiliary/novelty/Reward"].item()
    assert bonus > 0 and not torch.equal(first, rnd.predictor[1].weight)
    assert info["Q_Targets"].item() == pytest.approx(0.5 * bonus)
    assert rnd.inputs.count.item() == 8
    assert (data["rewards"] == 0).all()  # the batch of the caller stays as it is
    copy = make_algo(name)
    copy.deserialize(algo.serialize())
    assert torch.equal(
        copy.auxiliaries["auxiliary/novelty"].predictor[1].weight, rnd.predictor[1].weight
    )


class Still:
    """Nothing happens and nothing is rewarded."""

    name = "still"
    action_low, action_high = -np.ones(2), np.ones(2)

    def reset(self, *, seed=None):
        self.rng = np.random.default_rng(seed)
        return {"s": self.rng.normal(size=2)}, {}

    def step(self, action):
        return {"s": self.rng.normal(size=2)}, 0.0, False, False, {}

    def close(self):
        pass


def test_rollouts_of_ppo_are_rewarded_too():
    algo = make_algo("ppo")
    group = EnvGroup(Still, np.arange(2), seed=0, horizon=100)
    collector = LocalCollector(group, algo, Still.action_low, Still.action_high)
    learner = RolloutLearner(
        algo,
        rollout_steps=16,
        batch_size=16,
        reward_scaler=RewardScaler(RewardTransform(), 2, None),
    )
    seen = []
    prepare = algo.prepare_rollout
    algo.prepare_rollout = lambda rollout: seen.append(rollout["rewards"]) or prepare(rollout)
    learner.take(collector.collect(16))
    infos = list(learner.updates_due(1))
    assert (seen[0] > 0).all() and seen[0].shape == (16, 2)
    assert len(infos) == 2 and all("auxiliary/novelty/Loss" in info for info in infos)
    assert algo.auxiliaries["auxiliary/novelty"].inputs.count.item() == 32


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("sac", {"algo.auxiliary.novelty.type": "rmd"}, "no type 'rmd'; did you mean 'rnd'"),
        ("sac", {"algo.auxiliary.novelty.rewards": 1.0}, "rewards"),
        ("sac", {"algo.n_step": 3}, "algo.n_step is 3, but algo.auxiliary gives rewards"),
        ("ppo", {"algo.rnn.enabled": True, "train.seq_length": 4}, "minibatches of sequences"),
    ],
)
def test_what_cannot_work_is_refused(name, change, words):
    config = make_algo(name).global_config
    with pytest.raises(ConfigError, match=words):
        config.with_overrides(change)
