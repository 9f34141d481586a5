"""PPG: both losses by hand, the phases of several rollouts, and what learns in which."""

import math

import numpy as np
import pytest
import torch

from imitate.algo.ppg import AUXILIARY, divergence_from, numbers_of
from imitate.data.batches.rewards import RewardTransform
from imitate.errors import ConfigError
from imitate.models.categorical import Categorical
from imitate.train.online.collector import LocalCollector
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import RolloutLearner
from imitate.train.online.normalization import RewardScaler
from tests.tiny import tiny_algo, tiny_config
from tests.train.online.worlds import Line


def make(*overrides, hidden=(), **section):
    section = {"normalize_advantages": False, "interval": 2, **section}
    return tiny_algo("ppg", *overrides, obs={"s": 1}, hidden=hidden, algo=section)


def set_net(algo, policy, value, auxiliary):
    """Let the policy's mean, V and V_aux be these numbers times the state."""
    net = algo.net
    layers = (net.head.mean, net.value_head, net.get_submodule(AUXILIARY))
    for layer, slope in zip(layers, (policy, value, auxiliary), strict=True):
        torch.nn.init.constant_(layer.weight, slope)
        torch.nn.init.zeros_(layer.bias)


def batch(**more):
    return {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "returns": torch.ones(2),
        "actions": torch.zeros(2, 1),
        "log_prob": torch.full((2,), -0.5 * math.log(2 * math.pi)),
        "advantages": torch.tensor([1.0, 2.0]),
        "values": torch.zeros(2),
        **more,
    }


def test_the_loss_of_a_phase_by_hand():
    algo = make(clone_weight=2.0)
    set_net(algo, policy=1.0, value=2.0, auxiliary=3.0)
    before = batch(phase_policy=torch.zeros(2, 2))  # mean 0, variance 1
    info = algo.train_on_batch(before, 1, validate=True)
    # V_aux 3 and 6, V 2 and 4, returns 1; KL half of the squared mean, a tanh.
    assert info["Phase_Auxiliary_Loss"].item() == pytest.approx((4 + 25) / 4)
    assert info["Phase_Value_Loss"].item() == pytest.approx((1 + 9) / 4)
    divergence = (math.tanh(1) ** 2 + math.tanh(2) ** 2) / 4
    assert info["Phase_KL"].item() == pytest.approx(divergence)
    assert info["Loss"].item() == pytest.approx(7.25 + 2.5 + 2 * divergence)


def test_the_loss_of_a_rollout_by_hand():
    algo = make(value_weight=0.5, entropy_weight=0.1)
    set_net(algo, policy=0.0, value=2.0, auxiliary=3.0)
    info = algo.train_on_batch(batch(), 1, validate=True)
    assert info["Policy_Loss"].item() == pytest.approx(-1.5)
    assert info["Value_Loss"].item() == pytest.approx((1 + 9) / 2)
    entropy = 0.5 * math.log(2 * math.pi * math.e)
    assert info["Loss"].item() == pytest.approx(-1.5 + 0.5 * 5 + 7.25 - 0.1 * entropy)


def test_the_divergence_of_choices_is_from_the_old_policy():
    old = Categorical(torch.tensor([[math.log(3.0), 0.0]]))
    new = Categorical(torch.zeros(1, 2))
    wanted = 0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.25 / 0.5)
    assert divergence_from(numbers_of(old), new).item() == pytest.approx(wanted)


def slopes(data):
    algo = make(hidden=(4,))
    info = algo.train_on_batch(batch(advantages=torch.zeros(2), **data), 1)
    assert all(value.isfinite() for value in info.values())
    layer = algo.net.policy.layers[0].weight.grad
    return layer, algo.net.get_submodule(AUXILIARY).weight.grad


def test_only_in_a_phase_the_value_shapes_the_features_of_the_policy():
    layer, head = slopes({})
    assert layer.abs().max() == 0 and head.abs().max() > 0
    layer, head = slopes({"phase_policy": torch.zeros(2, 2)})
    assert layer.abs().max() > 0 and head.abs().max() > 0


def rollout(*states):
    seen = np.array(states, np.float32)[:, None, None]
    return {"obs": {"s": seen}, "mask": np.ones((len(states), 1), bool)}


def test_a_phase_sees_all_rollouts_since_the_last_and_the_policy_before_it():
    algo = make(auxiliary_epochs=3)
    set_net(algo, policy=7.0, value=0.0, auxiliary=0.0)
    first, second = rollout(1, 2, 3), rollout(4, 5, 6)
    assert list(algo.after_rollout(first, {"returns": torch.tensor([10.0, 20, 30])}, 2)) == []
    assert len(algo.kept) == 1
    set_net(algo, policy=1.0, value=0.0, auxiliary=0.0)  # what the updates of a rollout might do
    found = []
    for part in algo.after_rollout(second, {"returns": torch.tensor([40.0, 50, 60])}, 2):
        found.append({**part, "obs": part["obs"]["s"]})
        torch.nn.init.constant_(algo.net.head.mean.weight, 9.0)  # what an update might do
    assert len(found) == 9 and not algo.kept
    for part in range(3):
        rows = found[3 * part : 3 * part + 3]
        states = torch.cat([each["obs"][:, 0] for each in rows])
        assert sorted(states.tolist()) == [1, 2, 3, 4, 5, 6]
        assert torch.equal(torch.cat([each["returns"] for each in rows]), 10 * states)
        means = torch.cat([each["phase_policy"][:, 0] for each in rows])
        torch.testing.assert_close(means, states.tanh())


def test_a_learner_yields_the_phases_after_the_minibatches():
    """Two rollouts of 8 steps, in minibatches of 4; after the second one a phase with one pass over both."""
    algo = tiny_algo("ppg", obs={"place": 1}, algo={"interval": 2, "auxiliary_epochs": 1})
    scaler = RewardScaler(RewardTransform(), 2)
    learner = RolloutLearner(algo, rollout_steps=4, batch_size=4, reward_scaler=scaler)
    group = EnvGroup(Line, np.arange(2), seed=0, horizon=8)
    collector = LocalCollector(group, algo, Line.action_low, Line.action_high)
    phases = []
    for _ in range(2):
        learner.take(collector.collect(4))
        phases += ["phase_policy" in batch for batch in learner.batches_due()]
    first = 2 * 2 * algo.config.rollout_epochs
    assert phases == [False] * first + [True] * 4 and learner.updates == first + 4


def test_it_learns_the_better_action_and_keeps_it_through_the_phases():
    """Two kinds of actions in one state; those above 0 have advantage 1, the others -1."""
    rate = "algo.optim_params.policy.learning_rate.initial=0.02"
    algo = make(rate, hidden=(16,))
    torch.manual_seed(0)
    state = torch.ones(64, 1)
    for _ in range(60):
        step = algo.act({"s": state}, algo.initial_state(64), explore=True)
        drawn = {name: step.extras[name].detach() for name in ("policy_action", "log_prob")}
        done = {"obs": {"s": state}, "actions": drawn["policy_action"], "values": torch.zeros(64)}
        done |= {"advantages": done["actions"][:, 0].sign(), "returns": torch.full((64,), 2.0)}
        algo.train_on_batch({**done, "log_prob": drawn["log_prob"]}, 1)
        for part in algo.after_rollout(rollout(*[1.0] * 64), done, 64):
            info = algo.train_on_batch(part, 1)
    algo.set_eval()
    assert algo.get_action({"s": torch.ones(1, 1)}).item() > 0.5
    assert info["Phase_Auxiliary_Loss"] < 0.05 and info["Phase_KL"] < 0.05


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("algo.popart=0.1", "does not support it"),
        ("algo.rnn.enabled=true", "no recurrent form"),
        ("train.frame_stack=2", "keeps single observations"),
    ],
)
def test_what_it_does_not_combine_with_is_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config("ppg", change, obs={"s": 1})
