"""Limits of policies that learn from rollouts, by hand: the distance of an update, the entropy."""

import math

import pytest
import torch

from imitate.algo.slots.entropy_rule import EntropyRule, EntropyRuleConfig
from imitate.algo.slots.trust_region import OF_VALUE, distance
from imitate.errors import ConfigError
from imitate.models.categorical import Categorical
from imitate.models.heads import Gaussian
from tests.tiny import tiny_algo, tiny_config

LOG_2 = math.log(2.0)


def test_the_distance_of_two_policies_by_hand():
    old = Categorical(torch.tensor([[math.log(3.0), 0.0, -200.0]]))
    # another constant in all logits changes no policy, nor does a choice without any probability
    new = Categorical(torch.tensor([[5.0, 5.0, -95.0]]))
    expected = math.log(0.5 / 0.75) ** 2 + math.log(0.5 / 0.25) ** 2
    assert distance(old, new).item() == pytest.approx(expected, rel=1e-5)
    one = Gaussian(torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [1.0]]))
    other = Gaussian(torch.tensor([[1.0], [0.0]]), torch.tensor([[2.0], [1.0]]))
    # (1 + 1) / (2 * 4) + (4 + 1) / 2 - 1 in the first state, nothing in the second
    assert distance(one, other).item() == pytest.approx(1.75 / 2)


def updated(choices=0, **section):
    """A linear PPO after one update with a large learning rate; the algorithm, its weights before, its info."""
    rate = {"policy": {"learning_rate": {"initial": 0.5}}}
    section = {
        "optim_params": rate,
        "num_choices": choices,
        "normalize_advantages": False,
    } | section
    algo = tiny_algo("ppo", obs={"s": 1}, action=2, hidden=(4,), algo=section)
    before = {name: weight.clone() for name, weight in algo.net.named_parameters()}
    actions = torch.eye(2) if choices else torch.tensor([[0.3, -0.5], [1.0, 0.1]])
    batch = {
        "obs": {"s": torch.tensor([[1.0], [-2.0]])},
        "actions": actions,
        "advantages": torch.tensor([1.0, 2.0]),
        "returns": torch.ones(2),
        "values": torch.zeros(2),
    }
    with torch.no_grad():
        policy = algo.net.actor(batch["obs"])
        batch["log_prob"] = policy.log_prob(actions)
        info = algo.train_on_batch(batch, 1)
        change = distance(policy, algo.net.actor(batch["obs"])).item()
    return algo, before, info, change


@pytest.mark.parametrize("choices", [0, 2])
def test_a_step_that_is_too_long_is_shortened_on_its_way(choices):
    free, before, _, far = updated(choices)
    algo, _, info, near = updated(choices, trust_region=0.01)
    assert far > 0.05 and 0.3 * 0.02 < near <= 0.02
    assert info["Policy_Change"].item() == pytest.approx(math.sqrt(far), rel=1e-4)
    assert info["Shortened"] >= 1
    shares = []
    for name, weight in algo.net.named_parameters():
        whole, part = dict(free.net.named_parameters())[name] - before[name], weight - before[name]
        if name.partition(".")[0] in OF_VALUE:
            assert torch.equal(whole, part)
        elif whole.abs().max() > 0:
            shares += (part / whole)[whole != 0].tolist()
    assert 0 < shares[0] < 0.9 and shares == pytest.approx([shares[0]] * len(shares), rel=1e-3)


def test_a_region_that_no_step_leaves_changes_nothing():
    free, wide = updated()[0], updated(trust_region=1e9)[0]
    for one, other in zip(free.nets.parameters(), wide.nets.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_stages_of_the_weight_by_hand():
    rule, changes = EntropyRule(EntropyRuleConfig(rule="stages"), 1.0), []
    # a checkpoint with other numbers would be refused
    assert all(number.isfinite().all() for number in rule.buffers())
    # The means of two are 2, 2, 1.5 (below 0.8 of the first), 0.7 (below the target), 0.9, 1.3 and 1.2.
    for entropy in (2.0, 2.0, 1.0, 0.4, 1.4, 1.2, 1.2):
        before = rule.log_weight.item()
        rule.follow(torch.tensor(entropy))
        changes.append(rule.log_weight.item() - before)
    slow = [0.0, -0.001, 0.0005]
    fast = [LOG_2, -0.5 * LOG_2, -0.9 * LOG_2, 0.5 * 0.9 * LOG_2]
    assert changes == pytest.approx([*slow, *fast], abs=1e-6)
    rule.follow(torch.tensor(0.1))  # mean 0.65, below; less than half of the target
    assert rule.rate.item() == pytest.approx(LOG_2)
    for _ in range(60):
        rule.follow(torch.tensor(5.0))
        rule.follow(torch.tensor(6.0))
    assert rule.weight.item() == pytest.approx(1e-4)


def test_the_weight_by_gradients_by_hand():
    rule = EntropyRule(EntropyRuleConfig(rule="sgd", rate=0.1, initial=0.5), -2.0)
    rule.follow(torch.tensor(1.0))  # 3 nats above
    assert rule.weight.item() == pytest.approx(0.5 * math.exp(-0.3))
    rule.follow(torch.tensor(-4.0))
    assert rule.weight.item() == pytest.approx(0.5 * math.exp(-0.1))


def choosing(updates, **section):
    """An A2C of two choices in one state, whose advantages prefer the first one; the entropy of its policy."""
    rate = {"policy": {"learning_rate": {"initial": 0.1}}}
    section = {"optim_params": rate, "num_choices": 2, **section}
    algo = tiny_algo("a2c", obs={"s": 1}, action=2, hidden=(), algo=section)
    for _ in range(updates):
        with torch.no_grad():
            share = algo.net.actor({"s": torch.ones(1, 1)}).probabilities[0]
        batch = {
            "obs": {"s": torch.ones(2, 1)},
            "actions": torch.eye(2),
            "log_prob": torch.zeros(2),
            "advantages": 2 * share * torch.tensor([0.5, -0.5]),
            "returns": torch.zeros(2),
            "values": torch.zeros(2),
        }
        info = algo.train_on_batch(batch, 1)
    return algo, batch, info


@pytest.mark.parametrize("rule", ["sgd", "stages"])
def test_a_rule_keeps_the_entropy_near_its_target(rule):
    assert choosing(60)[2]["Entropy"] < 0.05
    algo, batch, info = choosing(200, entropy={"rule": rule, "target": 0.4, "rate": 0.1})
    assert 0.2 < info["Entropy"] < 0.6
    alpha = algo.entropy_rule.weight
    shown = algo.train_on_batch(batch, 1, validate=True)
    total = shown["Policy_Loss"] + 0.5 * shown["Value_Loss"] - alpha * shown["Entropy"]
    torch.testing.assert_close(shown["Loss"], total)
    assert torch.equal(algo.entropy_rule.weight, alpha)
    other = choosing(1, entropy={"rule": rule, "target": 0.4, "rate": 0.1})[0]
    other.deserialize(algo.serialize())
    for one in (algo, other):
        one.train_on_batch(batch, 1)
    assert torch.equal(algo.entropy_rule.weight, other.entropy_rule.weight)
    assert torch.equal(algo.net.head.logits.weight, other.net.head.logits.weight)


def test_usual_targets_are_those_of_sac():
    for choices, target in ((0, -2.0), (2, 0.5 * LOG_2)):
        section = {"entropy": {"rule": "sgd"}, "num_choices": choices}
        algo = tiny_algo("a2c", obs={"s": 1}, action=2, algo=section)
        assert algo.entropy_rule.target == pytest.approx(target)
    assert tiny_algo("a2c", obs={"s": 1}).entropy_rule is None


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("ppo", ("algo.entropy.rule=sgd", "algo.entropy_weight=0.1"), "sets the weight"),
        ("ppo_bc", ("algo.trust_region=0.01",), "does not support them"),
        ("reinflow", ("algo.entropy.rule=stages",), "does not support them"),
    ],
)
def test_what_they_do_not_combine_with_is_refused(name, changes, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config(name, *changes, obs={"s": 1})
