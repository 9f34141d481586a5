"""Masks of discrete actions against numbers worked out by hand."""

import math

import pytest
import torch

from imitate.errors import ConfigError, EnvError
from imitate.models.categorical import ActionMask, Categorical, Mixed, masked
from imitate.models.heads import Gaussian, TanhDistribution
from tests.algo.conftest import losses
from tests.tiny import tiny_algo

OBS = {"s": torch.ones(1, 1), "action_mask": torch.tensor([[1.0, 0.0, 1.0]])}


def make(name, num_choices=3, frame_stack=1, **section):
    return tiny_algo(
        name,
        obs={"s": 1, "action_mask": num_choices},
        action=num_choices,
        algo={"num_choices": num_choices, **section},
        train={"frame_stack": frame_stack, "seq_length": 1},
        observation={"modalities": {"obs": {"low_dim": ["s"], "mask": ["action_mask"]}}},
    )


def transitions(next_mask, mask=(1.0, 1.0, 1.0)):
    return {
        "obs": {"s": torch.tensor([[1.0]]), "action_mask": torch.tensor([mask])},
        "next_obs": {"s": torch.tensor([[2.0]]), "action_mask": torch.tensor([next_mask])},
        "goal_obs": None,
        "actions": torch.tensor([[1.0, 0.0, 0.0]]),
        "rewards": torch.tensor([1.0]),
        "discounts": torch.tensor([0.5]),
        "weight": None,
    }


def test_probabilities_entropy_and_log_probability_of_what_is_left():
    policy = Categorical(torch.tensor([[1.0, 2.0, 4.0]]).log()).restricted(OBS["action_mask"] > 0)
    # Of weights 1, 2, 4 the second is left out: 1/5 and 4/5.
    assert policy.probabilities[0].tolist() == pytest.approx([0.2, 0.0, 0.8])
    entropy = -(0.2 * math.log(0.2) + 0.8 * math.log(0.8))
    assert float(policy.entropy()) == pytest.approx(entropy)
    assert float(policy.log_prob(torch.tensor([[1.0, 0.0, 0.0]]))) == pytest.approx(math.log(0.2))
    assert policy.mean.tolist() == [[0.0, 0.0, 1.0]]


def test_gradients_of_what_is_left_are_those_of_fewer_choices_and_finite():
    logits = torch.tensor([[0.3, 5.0, -0.2]], requires_grad=True)
    policy = Categorical(logits).restricted(OBS["action_mask"] > 0)
    (policy.log_prob(torch.tensor([[1.0, 0.0, 0.0]])) + policy.entropy()).sum().backward()
    few = torch.tensor([[0.3, -0.2]], requires_grad=True)
    alone = Categorical(few)
    (alone.log_prob(torch.tensor([[1.0, 0.0]])) + alone.entropy()).sum().backward()
    assert abs(float(logits.grad[0, 1])) < 1e-6
    assert logits.grad[0, [0, 2]].tolist() == pytest.approx(few.grad[0].tolist(), abs=1e-6)


def test_what_is_forbidden_is_never_drawn():
    policy = Categorical(torch.zeros(5000, 3)).restricted((OBS["action_mask"] > 0).expand(5000, 3))
    drawn = policy.sample().sum(0)
    assert drawn[1] == 0 and 2300 < float(drawn[0]) < 2700


def test_a_mixed_action_keeps_the_numbers_of_its_choice():
    numbers = TanhDistribution(Gaussian(torch.zeros(1, 3, 1), torch.ones(1, 3, 1)))
    policy = Mixed(Categorical(torch.tensor([[0.0, 9.0, 1.0]])), numbers)
    assert policy.restricted(OBS["action_mask"] > 0).mean[0, :3].tolist() == [0.0, 0.0, 1.0]


def test_continuous_actions_have_nothing_to_mask():
    with pytest.raises(ConfigError, match="actions are continuous"):
        Gaussian(torch.zeros(1, 2), torch.ones(1, 2)).restricted(torch.ones(1, 2) > 0)


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac"])
def test_every_algorithm_takes_allowed_choices_alone(name):
    algo = make(name)
    obs = {"s": torch.randn(400, 1), "action_mask": torch.tensor([[0.0, 1.0, 1.0]]).expand(400, 3)}
    for explore in (True, False):
        action = algo.act(obs, algo.initial_state(400), explore=explore).action
        assert action[:, 0].sum() == 0 and action.sum() == 400
        assert not explore or min(action[:, 1].sum(), action[:, 2].sum()) > 20


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_no_allowed_choice_is_an_error_in_one_line(name):
    algo = make(name)
    obs = {"s": torch.ones(2, 1), "action_mask": torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])}
    with pytest.raises(EnvError, match=r"'action_mask' allows no choice \(all 3 are 0, row 1 of 2"):
        algo.act(obs, algo.initial_state(2))


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac"])
def test_networks_do_not_see_the_mask(name):
    assert make(name).encoding.encoder().output_dim == 1


def test_the_mask_of_the_newest_frame_counts():
    algo = make("dqn", frame_stack=2)
    state = algo.initial_state(1)
    for mask, forbidden in (([0.0, 1.0, 1.0], 0), ([1.0, 1.0, 0.0], 2)):
        obs = {"s": torch.ones(1, 1), "action_mask": torch.tensor([mask])}
        for _ in range(20):
            step = algo.act(obs, state, explore=True)
            assert step.action[0, forbidden] == 0
        state = step.state


@pytest.mark.parametrize(
    ("double", "next_mask", "value"),
    [
        (True, (1.0, 1.0, 1.0), 2 * 30),  # the network's best is the last choice
        (True, (1.0, 1.0, 0.0), 2 * 20),
        (True, (1.0, 0.0, 0.0), 2 * 40),
        (False, (0.0, 1.0, 1.0), 2 * 30),  # the target's best of what is left
    ],
)
def test_the_target_of_dqn_is_of_the_best_allowed_choice(double, next_mask, value):
    algo = make("dqn", double=double, critic={"layer_dims": []})
    for name, slopes in (("critic", (1.0, 2.0, 3.0)), ("critic_target", (40.0, 20.0, 30.0))):
        algo.nets[name].head.weight.data = torch.tensor([[slope] for slope in slopes])
        algo.nets[name].head.bias.data.zero_()
    assert losses(algo, transitions(next_mask))["Q_Targets"] == pytest.approx(1 + 0.5 * value)


def discrete_sac(**section):
    algo = make(
        "sac",
        critic={"layer_dims": [], "ensemble": {"n": 1}},
        temperature={"initial": 0.5},
        **section,
    )
    for name, slopes in (("critic", (1.0, 2.0, 3.0)), ("critic_target", (1.0, 100.0, 3.0))):
        algo.nets[name].head.weight.data = torch.tensor([slopes]).unsqueeze(1)
        algo.nets[name].head.bias.data.zero_()
    algo.actor.head.logits.weight.data.zero_()
    algo.actor.head.logits.bias.data = torch.tensor([1.0, 9.0, 3.0]).log()
    return algo


def test_the_target_of_sac_sums_over_allowed_choices():
    # Probabilities 1/4 and 3/4 of the first and the last, values 2 and 6 of the next state.
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    info = losses(discrete_sac(), transitions((1.0, 0.0, 1.0)))
    assert info["Q_Targets"] == pytest.approx(1 + 0.5 * (0.25 * 2 + 0.75 * 6 + 0.5 * entropy))


def test_the_entropy_that_sac_wants_depends_on_the_choices_that_are_left():
    algo = discrete_sac()
    batch = transitions((1.0, 1.0, 1.0), mask=(1.0, 0.0, 1.0))
    info = algo.train_on_batch(batch, 1, validate=True)
    entropy = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))
    assert float(info["Entropy"]) == pytest.approx(entropy)
    assert float(info["Entropy_Target"]) == pytest.approx(0.5 * math.log(2))
    loss = algo._temperature_loss(info)
    wanted = math.log(0.5) * (entropy - 0.5 * math.log(2))
    assert float(loss.detach()) == pytest.approx(wanted)


def test_a_terminal_state_without_choices_gives_no_nan():
    for algo in (make("dqn"), discrete_sac()):
        batch = transitions((0.0, 0.0, 0.0))
        batch["discounts"] = torch.zeros(1)
        info = losses(algo, batch)
        assert info["Q_Targets"] == 1.0
        assert all(math.isfinite(value) for value in info.values())


def test_the_policy_loss_of_ppo_sees_probabilities_of_allowed_choices():
    algo = make("ppo")
    net = algo.nets["policy"]
    net.head.logits.weight.data.zero_()
    net.head.logits.bias.data = torch.tensor([1.0, 9.0, 3.0]).log()
    batch = {
        "obs": OBS,
        "actions": torch.tensor([[0.0, 0.0, 1.0]]),
        "log_prob": torch.tensor([math.log(0.75)]),
        "advantages": torch.tensor([2.0]),
        "returns": torch.zeros(1),
        "values": torch.zeros(1),
    }
    info = losses(algo, batch)
    # The ratio is 1: nothing is clipped, and the loss is minus the advantage.
    assert info["Policy_Loss"] == pytest.approx(-2.0)
    assert info["KL"] == pytest.approx(0.0, abs=1e-6)
    step = algo.act(OBS, algo.initial_state(1), explore=True)
    chosen = step.action[0].argmax()
    assert float(step.extras["log_prob"]) == pytest.approx(math.log([0.25, 0.0, 0.75][chosen]))


def test_without_a_mask_nothing_changes():
    scores = torch.randn(2, 3)
    assert masked(scores, None) is scores
    assert ActionMask(None).of({"s": scores}) is None
