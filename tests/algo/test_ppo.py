"""PPO and A2C: clipped ratios, rollouts and their values, by hand."""

import math

import numpy as np
import pytest
import torch

from imitate.algo.base.optimization import updates_per_epoch
from imitate.algo.base.rows import stacked_frames
from tests.tiny import tiny_algo


def make(actions=1, **section):
    section = {"normalize_advantages": False, **section}
    words = {"algo": section, "train": {"batch_size": 4}}
    return tiny_algo("ppo", obs={"s": 1}, action=actions, hidden=(), **words)


def set_net(algo, policy=(0.0,), value=0.0):
    """Let the policy's mean (or logits) be ``policy * state``, the value ``value * state``."""
    net = algo.nets["policy"]
    last = net.head.logits if hasattr(net.head, "logits") else net.head.mean
    last.weight.data = torch.tensor([[float(x)] for x in policy])
    last.bias.data.zero_()
    net.value_head.weight.data.fill_(value)
    net.value_head.bias.data.zero_()


def batch(log_ratio, advantages, values=(0.0, 0.0), returns=(0.0, 0.0)):
    """Two steps in states 1 and 2, whose action 0 was ``log_ratio`` less likely when it was taken."""
    now = -0.5 * math.log(2 * math.pi)
    return {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "actions": torch.zeros(2, 1),
        "log_prob": torch.tensor([now - x for x in log_ratio]),
        "advantages": torch.tensor(advantages),
        "values": torch.tensor(values),
        "returns": torch.tensor(returns),
    }


def test_ratios_are_clipped_on_the_side_that_pays():
    algo = make(clip=0.2)
    set_net(algo)
    double, half = math.log(2.0), math.log(0.5)
    cases = [
        ((double, half), (1.0, 1.0), -(1.2 + 0.5) / 2),
        ((double, half), (-1.0, -1.0), (2.0 + 0.8) / 2),
    ]
    for ratios, advantages, expected in cases:
        info = algo.train_on_batch(batch(ratios, advantages), 1, validate=True)
        assert info["Policy_Loss"].item() == pytest.approx(expected)
        assert info["Clip_Fraction"].item() == 1.0


def test_the_loss_is_the_weighted_sum():
    algo = make(value_weight=0.5, entropy_weight=0.1)
    set_net(algo, value=3.0)
    data = batch((0.0, 0.0), (1.0, 2.0), returns=(1.0, 1.0))
    info = algo.train_on_batch(data, 1, validate=True)
    assert info["Policy_Loss"].item() == pytest.approx(-1.5)
    assert info["Value_Loss"].item() == pytest.approx((4 + 25) / 2)
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert info["Entropy"].item() == pytest.approx(entropy)
    assert info["Loss"].item() == pytest.approx(-1.5 + 0.5 * 14.5 - 0.1 * entropy)
    assert info["KL"].item() == pytest.approx(0.0)


def test_values_may_be_clipped():
    algo = make(value_clip=0.5)
    set_net(algo, value=3.0)
    data = batch((0.0, 0.0), (0.0, 0.0), values=(0.0, 0.0), returns=(4.0, 0.0))
    info = algo.train_on_batch(data, 1, validate=True)
    # Values 3 and 6, held to 0.5: errors max(1, 12.25) and max(36, 0.25).
    assert info["Value_Loss"].item() == pytest.approx((12.25 + 36) / 2)


def test_advantages_are_normalized_per_minibatch():
    # 1 and 3 become -+ 1 / sqrt(2); of ratios 1 and 2, unclipped, the loss is minus the mean of ratio times that.
    algo = make(normalize_advantages=True, clip=10.0)
    set_net(algo)
    info = algo.train_on_batch(batch((0.0, math.log(2.0)), (1.0, 3.0)), 1, validate=True)
    assert info["Policy_Loss"].item() == pytest.approx(-(0.5**0.5) / 2, rel=1e-5)


def test_a_rollout_is_prepared_once_with_values_of_what_followed():
    algo = make(discount=0.5, trace=1.0)
    set_net(algo, value=1.0)
    ones = np.ones((3, 1), np.float32)
    rollout = {
        "obs": {"s": np.array([[[1.0]], [[2.0]], [[5.0]]], np.float32)},
        "rewards": ones,
        "terminals": np.zeros((3, 1), bool),
        "timeouts": np.array([[False], [True], [False]]),
        "mask": np.array([[True], [True], [True]]),
        "end_rows": np.array([1, 2]),
        "end_obs": {"s": np.array([[3.0], [6.0]], np.float32)},
        "policy_action": np.zeros((3, 1, 1), np.float32),
        "log_prob": np.zeros((3, 1), np.float32),
    }
    prepared = algo.prepare_rollout(rollout)
    # Returns: 1 + (1 + 3 / 2) / 2; 1 + 3 / 2 at the timeout; 1 + 6 / 2 at the end of the rollout.
    assert prepared["returns"].tolist() == [2.25, 2.5, 4.0]
    assert prepared["advantages"].tolist() == [1.25, 0.5, -1.0]
    rollout["mask"] = np.array([[True], [False], [True]])
    assert algo.prepare_rollout(rollout)["values"].tolist() == [1.0, 5.0]


def test_discrete_actions_and_their_density():
    algo = make(actions=2, num_choices=2)
    set_net(algo, policy=(math.log(3.0), 0.0))
    obs, state = {"s": torch.ones(20_000, 1)}, algo.initial_state(20_000)
    step = algo.act(obs, state, explore=True)
    assert step.action[:, 0].mean().item() == pytest.approx(0.75, abs=0.02)
    expected = torch.where(step.action[:, 0] == 1, math.log(0.75), math.log(0.25))
    torch.testing.assert_close(step.extras["log_prob"], expected)
    assert algo.act(obs, state).action[:, 0].min() == 1.0
    policy, _ = algo.net(obs)
    expected_entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert policy.entropy()[0].item() == pytest.approx(expected_entropy)


def test_a_rollout_is_left_when_the_policy_has_moved_far():
    algo = make(target_kl=0.01)
    assert algo.leaves_rollout({"KL": torch.tensor(0.02)})
    assert not algo.leaves_rollout({"KL": torch.tensor(0.014)})
    assert not make().leaves_rollout({"KL": torch.tensor(9.0)})


def test_the_schedule_counts_updates():
    # 10 steps in an epoch, each learned from 6 times, 4 at a time.
    assert updates_per_epoch(make(rollout_epochs=6).global_config, rollouts=True) == 15


def make_a2c(hidden=(), **section):
    return tiny_algo("a2c", obs={"s": 1}, hidden=hidden, algo=section)


def test_the_loss_by_hand():
    algo = make_a2c(value_weight=0.5, entropy_weight=0.1)
    net = algo.nets["policy"]
    for layer, weight in ((net.head.mean, 0.0), (net.value_head, 3.0)):
        torch.nn.init.constant_(layer.weight, weight)
        torch.nn.init.zeros_(layer.bias)
    batch = {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "actions": torch.tensor([[0.0], [1.0]]),
        "log_prob": torch.zeros(2),
        "advantages": torch.tensor([1.0, 2.0]),
        "values": torch.zeros(2),
        "returns": torch.ones(2),
    }
    info = algo.train_on_batch(batch, 1, validate=True)
    # Standard deviation 1 around 0: log-densities of 0 and 1.
    density = [-0.5 * math.log(2 * math.pi), -0.5 * math.log(2 * math.pi) - 0.5]
    policy = -(density[0] + 2 * density[1]) / 2
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert info["Policy_Loss"].item() == pytest.approx(policy)
    assert info["Value_Loss"].item() == pytest.approx((4 + 25) / 2)
    assert info["Loss"].item() == pytest.approx(policy + 0.5 * 14.5 - 0.1 * entropy)


def test_it_learns_the_better_action():
    """Two kinds of actions in one state; those above 0 have advantage 1, the others -1."""
    rate = {"policy": {"learning_rate": {"initial": 0.01}}}
    algo = make_a2c(hidden=(16,), optim_params=rate)
    torch.manual_seed(0)
    algo.set_train()
    obs = {"s": torch.ones(64, 1)}
    for _ in range(100):
        step = algo.act(obs, algo.initial_state(64), explore=True)
        action = step.extras["policy_action"]
        batch = {
            "obs": obs,
            "actions": action,
            "log_prob": step.extras["log_prob"].detach(),
            "advantages": action[:, 0].sign(),
            "values": torch.zeros(64),
            "returns": torch.zeros(64),
        }
        algo.train_on_batch(batch, 1)
    algo.set_eval()
    assert algo.get_action({"s": torch.ones(1, 1)}).item() > 0.5


def test_frames_are_stacked_within_episodes_and_unknown_ones_are_left_out(worlds):
    """Two lanes of three steps; the first lane ends after step 1, the second after step 0."""
    rollout = worlds.two_lanes()
    obs = {"x": torch.arange(6.0)[:, None]}  # of lanes 0 and 1 in turn
    end_obs = {"x": torch.from_numpy(rollout["end_obs"]["x"])}  # after rows 1, 4, 5
    now, after, known = stacked_frames(obs, end_obs, rollout, 2)
    wanted = [[0, 0], [1, 1], [0, 2], [3, 3], [4, 4], [3, 5]]
    assert now["x"][..., 0].tolist() == [[float(x) for x in pair] for pair in wanted]
    assert after["x"][..., 0].tolist() == [[1.0, 91.0], [4.0, 94.0], [5.0, 95.0]]
    assert known.tolist() == [[False, False], [True, True], [True, True]]
