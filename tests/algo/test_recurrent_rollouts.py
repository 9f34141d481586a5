"""Sequences of rollouts, and the memory of policies that learn from them."""

import numpy as np
import pytest
import torch

from imitate.algo.slots.memory import one_step, sequences
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import stacked
from tests.algo.test_recurrent_replay import Walk
from tests.tiny import tiny_algo


class ShortWalk(Walk):
    longest = 9


class Frail(ShortWalk):
    """Fails at its 12th step."""

    taken = 0

    def step(self, action):
        self.taken += 1
        if self.taken == 12:
            raise RuntimeError("broken")
        return super().step(action)


def make(name="ppo", rnn_type="GRU", num_layers=1, seq_length=4, **section):
    rnn = {"enabled": True, "rnn_type": rnn_type, "num_layers": num_layers}
    train = {"seq_length": seq_length, "online": {"collect_steps": 20}}
    words = {"algo": {"rnn": rnn, **section}, "train": train}
    return tiny_algo(name, action=2, hidden=(64, 64), **words)


def rollouts(algo, env=ShortWalk, envs=3, steps=20, number=2):
    """Raw rollouts, the second of which begins in the middle of episodes."""
    group = EnvGroup(env, np.arange(envs), seed=0, horizon=100)
    low, high = group.envs[0].action_low, group.envs[0].action_high
    collector = LocalCollector(group, algo, low, high)
    return [stacked(collector.collect(steps).steps) for _ in range(number)]


def decided(algo, minibatch):
    """Distribution of the policy, and values, at the steps of a minibatch of sequences."""
    net = algo.net
    return net.decide(algo.memory.features(net.encoder, net.memory, minibatch), minibatch["obs"])


def test_sequences_by_hand():
    # Lane 0: an episode of 5 steps, then the beginning of one. Lane 1: one that is void, then three steps.
    ends = np.array([[0, 0], [0, 0], [0, 1], [0, 0], [1, 0], [0, 0]], dtype=bool)
    mask = np.array([[1, 0], [1, 0], [1, 0], [1, 1], [1, 1], [1, 1]], dtype=bool)
    sequence, place = sequences(ends, mask, 2)
    assert place[:, 0].tolist() == [0, 1, 0, 1, 0, 0]
    assert sequence[:, 0].tolist() == [0, 0, 1, 1, 2, 3]
    assert place[3:, 1].tolist() == [0, 1, 0]
    assert sequence[3:, 1].tolist() == [4, 4, 5]


@pytest.mark.parametrize(("rnn_type", "num_layers"), [("GRU", 1), ("LSTM", 2)])
@pytest.mark.parametrize("choices", [0, 2])
@pytest.mark.parametrize("env", [ShortWalk, Frail])
def test_densities_are_those_of_the_collection(rnn_type, num_layers, choices, env):
    algo = make(rnn_type=rnn_type, num_layers=num_layers, num_choices=choices)
    for rollout in rollouts(algo, env):
        ends = rollout["terminals"] | rollout["timeouts"]
        assert ends[:-1].sum() > 3  # boundaries inside
        batch = algo.prepare_rollout(rollout)
        assert len(batch["place"]) == rollout["mask"].sum()
        assert int(batch["place"].max()) == 3
        seen = []
        for minibatch in algo.minibatches(batch, 16):
            policy, values = decided(algo, minibatch)
            now = policy.log_prob(minibatch["actions"])
            torch.testing.assert_close(now, minibatch["log_prob"], rtol=0, atol=1e-5)
            torch.testing.assert_close(values, minibatch["values"], rtol=0, atol=1e-5)
            assert abs(float(algo.train_on_batch(minibatch, 1, validate=True)["KL"])) < 1e-6
            seen.append(minibatch["actions"])
        assert len(seen) >= 2
        assert sum(map(len, seen)) == len(batch["place"])


def test_a_memory_matters_in_these_rollouts():
    # The test above would pass without one if states were all alike.
    algo = make()
    batch = algo.prepare_rollout(rollouts(algo)[1])
    forgetful = {**batch, "memory": {"h": torch.zeros_like(batch["memory"]["h"])}}
    minibatch = next(algo.minibatches(forgetful, 10_000))
    now = decided(algo, minibatch)[0].log_prob(minibatch["actions"])
    assert (now - minibatch["log_prob"]).abs().max() > 1e-3


def test_values_after_timeouts_and_at_the_end_are_of_the_remembering_policy():
    algo = make(discount=0.5, trace=0.0)
    rollout = rollouts(algo)[1]
    batch = algo.prepare_rollout(rollout)
    # Step by step, with trace 0: the return is the reward and half of the next value.
    net, ends = algo.net, rollout["terminals"] | rollout["timeouts"]
    expected = np.zeros_like(rollout["rewards"])
    with torch.no_grad():
        for lane in range(3):
            state = {"h": torch.from_numpy(rollout["memory/h"][:1, lane])}
            for step in range(20):
                obs = {"s": torch.from_numpy(rollout["obs"]["s"][step, lane : lane + 1])}
                _, state = one_step(net.encoder, net.memory, obs, state)
                row = step * 3 + lane
                where = np.flatnonzero(rollout["end_rows"] == row)
                shown = (
                    rollout["end_obs"]["s"][where]
                    if len(where)
                    else rollout["obs"]["s"][min(step + 1, 19), lane : lane + 1]
                )
                known, _ = one_step(net.encoder, net.memory, {"s": torch.from_numpy(shown)}, state)
                value = 0.0 if rollout["terminals"][step, lane] else float(net.values_of(known, {}))
                expected[step, lane] = rollout["rewards"][step, lane] + 0.5 * value
                if ends[step, lane]:
                    state = net.memory.initial_state(1)
    np.testing.assert_allclose(batch["returns"].reshape(20, 3), expected, atol=1e-5)


def test_the_state_is_fresh_where_an_episode_begins():
    rollout = rollouts(make())[0]
    ends = rollout["terminals"] | rollout["timeouts"]
    begins = np.concatenate([np.ones((1, 3), bool), ends[:-1]])
    np.testing.assert_array_equal((rollout["memory/h"] == 0).all(axis=(2, 3)), begins)


def test_minibatches_are_whole_sequences_and_each_comes_once():
    algo = make()
    batch = algo.prepare_rollout(rollouts(algo)[0])
    found = [minibatch["sequence"].tolist() for minibatch in algo.minibatches(batch, 16)]
    assert len(found) == 4  # of 60 steps
    assert all(10 <= len(part) <= 22 for part in found)
    assert sum(len(set(part)) for part in found) == int(batch["sequence"].max()) + 1
    assert sorted(sum(found, [])) == sorted(batch["sequence"].tolist())
    for minibatch in algo.minibatches(batch, 16):
        later = minibatch["place"][1:] > 0
        assert torch.equal(minibatch["place"][1:][later], minibatch["place"][:-1][later] + 1)


def test_padding_leaves_losses_alone():
    """Two sequences together, of 4 steps and of 1, give the mean over five steps of what each gives alone."""
    algo = make(normalize_advantages=False)
    batch = algo.prepare_rollout(rollouts(algo)[0])
    lengths = batch["sequence"].bincount()
    long, short = int((lengths == 4).nonzero()[0]), int((lengths == 1).nonzero()[0])
    with torch.no_grad():
        batch["advantages"] = batch["advantages"] * 3

        def loss(*numbers):
            rows = torch.cat([(batch["sequence"] == n).nonzero()[:, 0] for n in numbers])
            part = {k: v[rows] for k, v in batch.items() if not isinstance(v, dict)}
            part |= {k: {n: x[rows] for n, x in batch[k].items()} for k in ("obs", "memory")}
            return algo.train_on_batch(part, 1, validate=True)

        both, one, other = loss(long, short), loss(long), loss(short)
    for name in ("Policy_Loss", "Value_Loss", "Entropy"):
        expected = (4 * one[name] + other[name]) / 5
        torch.testing.assert_close(both[name], expected, rtol=1e-5, atol=1e-6)


def test_advantages_are_normalized_over_real_steps():
    """At ratios of 1 the policy's loss is minus the mean of the normalized advantages: 0, in every minibatch."""
    algo = make()
    batch = algo.prepare_rollout(rollouts(algo)[0])
    assert abs(float(batch["advantages"].mean())) > 0.01
    for minibatch in algo.minibatches(batch, 16):
        info = algo.train_on_batch(minibatch, 1, validate=True)
        assert abs(float(info["Policy_Loss"])) < 1e-5


def test_gradients_reach_over_the_steps_of_a_sequence():
    algo = make(seq_length=4)
    minibatch = next(algo.minibatches(algo.prepare_rollout(rollouts(algo)[0]), 10_000))
    obs = minibatch["obs"]["s"].requires_grad_()
    _, values = decided(algo, {**minibatch, "obs": {"s": obs}})
    last = int((minibatch["place"] == 3).nonzero()[0])
    (gradient,) = torch.autograd.grad(values[last], obs)
    touched = gradient.abs().sum(-1).nonzero()[:, 0].tolist()
    assert touched == [last - 3, last - 2, last - 1, last]


def test_the_recurrent_a2c():
    algo = make("a2c")
    batch = algo.prepare_rollout(rollouts(algo)[0])
    before = algo.nets["policy"].memory.nets.weight_hh_l0.detach().clone()
    algo.set_train()
    algo.train_on_batch(next(algo.minibatches(batch, 16)), 1)
    assert not torch.equal(before, algo.nets["policy"].memory.nets.weight_hh_l0)
