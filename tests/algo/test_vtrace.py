"""V-trace of a2c: targets and advantages by hand, and rollouts that are prepared before each pass."""

import math

import numpy as np
import pytest

from imitate.errors import ConfigError
from imitate.functional.policy_gradient import generalized_advantages, vtrace
from imitate.train.online.learners import RolloutLearner
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
    learner.take(type("Collected", (), {"steps": [0, 0, 0], "lanes": np.zeros(1, int)})())
    assert len(list(learner.batches_due())) == 3
    assert len(prepared) == (3 if corrects else 1)


@pytest.mark.parametrize("change", ["algo.popart=0.1", "algo.rnn.enabled=true"])
def test_what_it_does_not_combine_with_is_refused(change):
    with pytest.raises(ConfigError, match="algo.vtrace is true, but"):
        tiny_config("a2c", "algo.vtrace=true", change, obs={"s": 1})
