"""V-trace of a2c: targets and advantages by hand, and rollouts that are prepared before each pass, or are stale."""

import math

import numpy as np
import pytest
import torch

from imitate.data.batches.rewards import RewardTransform
from imitate.errors import ConfigError
from imitate.functional.policy_gradient import generalized_advantages, vtrace
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import RolloutLearner
from imitate.train.online.normalization import RewardScaler
from imitate.train.online.seats import acting_weights, load_acting_weights
from tests.tiny import tiny_algo, tiny_config


def column(*values, kind=np.float32):
    return np.array(values, kind)[:, None]


def ends(*values):
    return column(*values, kind=bool)


def test_targets_and_advantages_by_hand():
    """Rewards 1, 2, 4; values 1, 2, 5 and 6 at the end; the second action is half as likely now, the third twice."""
    given = column(1, 2, 4), column(1, 2, 5), column(2, 5, 6), column(1, 0.5, 2)
    never = ends(False, False, False)
    targets, advantages = vtrace(*given, never, never, 0.5, 1.0)
    third = 4 + 0.5 * 6  # the ratio is clipped at 1
    second = 2 + 0.5 * (2 + 0.5 * 5 - 2) + 0.5 * 0.5 * (third - 5)
    first = 1 + 0.5 * second
    assert targets[:, 0].tolist() == [first, second, third]
    assert advantages[:, 0].tolist() == [first - 1, 0.5 * (2 + 0.5 * third - 2), third - 5]
    # after a terminal nothing counts, after a timeout the value that is known
    targets, advantages = vtrace(*given, ends(False, True, False), never, 0.5, 1.0)
    assert targets[:2, 0].tolist() == [1 + 0.5 * 2, 2] and advantages[1, 0] == 0
    targets, advantages = vtrace(*given, never, ends(False, True, False), 0.5, 1.0)
    assert targets[1, 0] == 2 + 0.5 * 2.5 and advantages[1, 0] == 0.5 * 2.5


def test_of_the_current_policy_advantages_are_the_usual_ones():
    rng = np.random.default_rng(0)
    rewards, values, after = rng.normal(size=(3, 6, 2)).astype(np.float32)
    after[:-1] = values[1:]
    over = rng.random((2, 6, 2)) < 0.2
    over[1] &= ~over[0]
    found = vtrace(rewards, values, after, np.ones_like(values), *over, 0.9, 0.7)
    wanted = generalized_advantages(rewards, values, after, *over, 0.9, 0.7)
    np.testing.assert_allclose(found[1], wanted, atol=1e-5)
    np.testing.assert_allclose(found[0], wanted + values, atol=1e-5)


def make(**section):
    section = {"discount": 0.5, "trace": 1.0, "rollout_epochs": 3, **section}
    return tiny_algo("a2c", obs={"s": 1}, hidden=(), algo=section)


def rollout(algo, mean=0.0):
    """Three steps whose actions, 0, were drawn from a Gaussian with this mean; all values are 1."""
    linear, value = algo.net.head.mean, algo.net.value_head
    for weights in (linear.weight, linear.bias, value.weight, value.bias):
        weights.data.zero_()
    value.bias.data.fill_(1.0)
    drawn = -0.5 * mean**2 - 0.5 * math.log(2 * math.pi)
    return {
        "obs": {"s": np.ones((3, 1, 1), np.float32)},
        "rewards": column(1, 1, 1),
        "terminals": ends(False, False, False),
        "timeouts": ends(False, False, False),
        "mask": ends(True, True, True),
        "end_rows": np.array([2]),
        "end_obs": {"s": np.ones((1, 1), np.float32)},
        "policy_action": np.zeros((3, 1, 1), np.float32),
        "log_prob": np.full((3, 1), drawn, np.float32),
    }


def test_returns_are_corrected_by_the_policy_of_now():
    algo = make(vtrace=True)
    same = algo.prepare_rollout(rollout(algo))
    assert same["returns"].tolist() == pytest.approx([1.875, 1.75, 1.5], rel=1e-5)
    # The action 0 was drawn with the mean 0: with 1 its probability falls to exp(-1/2) of that.
    stale = rollout(algo)
    algo.net.head.mean.bias.data.fill_(math.atanh(0.5))
    ratio = math.exp(-0.5 * 0.25)
    found = algo.prepare_rollout(stale)
    # Each step's reward and next value are 0.5 more than its value.
    last = 1 + 0.5 * ratio
    middle = 1 + 0.5 * ratio + 0.5 * ratio * (last - 1)
    first = 1 + 0.5 * ratio + 0.5 * ratio * (middle - 1)
    assert found["returns"].tolist() == pytest.approx([first, middle, last])
    advantages = [ratio * 0.5 * middle, ratio * 0.5 * last, ratio * 0.5]
    assert found["advantages"].tolist() == pytest.approx(advantages, rel=1e-5)


def collected(steps, lanes):
    return type("Collected", (), {"steps": steps, "lanes": np.array(lanes)})()


@pytest.mark.parametrize("corrects", [False, True])
def test_a_rollout_is_prepared_before_each_pass(corrects, monkeypatch):
    algo = make(vtrace=corrects)
    learner = RolloutLearner(algo, rollout_steps=3, batch_size=3, reward_scaler=lambda x, *_: x)
    steps, prepared = rollout(algo), []
    monkeypatch.setattr("imitate.train.online.learners.stacked", lambda _: steps)
    whole = type(algo).prepare_rollout

    def counted(self, raw):
        prepared.append(raw)
        return whole(self, raw)

    monkeypatch.setattr(type(algo), "prepare_rollout", counted)
    learner.take(collected([0, 0, 0], [0]))
    assert len(list(learner.batches_due())) == 3
    assert len(prepared) == (3 if corrects else 1)


def test_rollouts_of_several_workers_wait_for_their_updates_and_are_prepared_in_turn(monkeypatch):
    """Two rollouts of three updates each, of which five are allowed at first: the sixth follows in the next call."""
    algo = make(vtrace=True)
    learner = RolloutLearner(algo, rollout_steps=3, batch_size=3, reward_scaler=lambda x, *_: x)
    steps = iter([rollout(algo), rollout(algo)])
    monkeypatch.setattr("imitate.train.online.learners.stacked", lambda _: next(steps))
    learner.take(collected([0, 0, 0], [1]))
    assert len(list(learner.batches_due(2))) == 2 and learner.updates == 2
    learner.take(collected([0, 0, 0], [0]))
    algo.net.value_head.bias.data.fill_(3.0)
    found = [batch["values"].mean().item() for batch in learner.batches_due(3)]
    assert found == [3.0] * 3 and learner.updates == 5  # the values of now, not of when it came
    assert not list(learner.batches_due(0))
    assert len(list(learner.batches_due())) == 1 and not list(learner.batches_due())


class Detour:
    """State 0: choice 0 ends with the reward 0.6, 1 goes on to state 1, where choice 0 costs 1 and choice 1 pays 1."""

    name, num_choices, action_dim = "detour", 2, 2
    action_low, action_high = np.zeros(2), np.ones(2)

    def reset(self, *, seed=None):
        self.state = 0
        return self.obs(), {}

    def step(self, action):
        chosen, over = int(np.argmax(action)), self.state == 1
        reward = 2.0 * chosen - 1.0 if over else 0.6 * (1 - chosen)
        over, self.state = over or chosen == 0, 1
        return self.obs(), reward, over, False, {}

    def obs(self):
        return {"s": np.eye(2)[self.state]}

    def close(self):
        pass


def detour(seed, corrects):
    """Learn from rollouts of the first weights alone; return the probabilities of choice 1 in both states."""
    section = {"num_choices": 2, "trace": 1.0, "vtrace": corrects}
    rate = "algo.optim_params.policy.learning_rate.initial=0.03"
    words = {"obs": {"s": 2}, "action": 2, "hidden": (), "seed": seed, "algo": section}
    algo, first = (tiny_algo("a2c", rate, **words) for _ in range(2))
    load_acting_weights(first, acting_weights(algo))
    group = EnvGroup(Detour, np.arange(8), seed=seed, horizon=10)
    collector = LocalCollector(group, first, np.zeros(2), np.ones(2), num_choices=2)
    scaler = RewardScaler(RewardTransform(), 8)
    learner = RolloutLearner(algo, rollout_steps=8, batch_size=64, reward_scaler=scaler)
    for _ in range(120):
        learner.take(collector.collect(8))
        assert len(list(learner.updates_due(1))) == 1
    with torch.no_grad():
        return algo.net.actor({"s": torch.eye(2)}).logits.softmax(-1)[:, 1].tolist()


MORE = [pytest.param(seed, marks=pytest.mark.nightly) for seed in (1, 2)]


@pytest.mark.parametrize("seed", [0, *MORE])
def test_rollouts_of_old_weights_are_worth_what_they_are_now(seed):
    """The first weights lose in state 1 as often as they win there, so that by their returns the detour pays nothing.

    The policy learns to win there from their steps; only with the correction it then also goes there.
    """
    assert min(detour(seed, corrects=True)) > 0.9
    goes, wins = detour(seed, corrects=False)
    assert goes < 0.5 and wins > 0.9


@pytest.mark.parametrize("change", ["algo.popart=0.1", "algo.rnn.enabled=true"])
def test_what_it_does_not_combine_with_is_refused(change):
    with pytest.raises(ConfigError, match="algo.vtrace is true, but"):
        tiny_config("a2c", "algo.vtrace=true", change, obs={"s": 1})
