"""SAC of a choice with numbers beside it: worlds worked out by hand, with all but no noise in the numbers."""

import math

import pytest
import torch

STD = 1e-6
NOISELESS = {"actor": {"net": {"gaussian": {"min_std": STD, "max_std": STD}}}}


def make(worlds, hidden=(), **section):
    kind = {"num_choices": 2, "num_continuous": 1}
    return worlds.make_algo("sac", {**NOISELESS, **kind, **section}, action=3, hidden=hidden)


def set_values(critic, *members):
    """Let choice i of member e be worth ``a * state + b * number``, (a, b) = members[e][i]."""
    critic.head.weight.data = torch.tensor(members, dtype=torch.float32).transpose(1, 2)
    critic.head.bias.data.zero_()


def set_policy(algo, logits, means):
    """The same policy in every state; ``means`` before the tanh, by choice."""
    head = algo.actor.head
    for linear, bias in ((head.choice.logits, logits), (head.numbers.mean, means)):
        linear.weight.data.zero_()
        linear.bias.data = torch.tensor(bias)


def mixed_transitions(worlds):
    return worlds.two_transitions(actions=torch.tensor([[1.0, 0.0, 0.5], [0.0, 1.0, -0.5]]))


def density(mean):
    """Expected log-density of a tanh-Gaussian sample with a small std."""
    return -math.log(STD * math.sqrt(2 * math.pi * math.e)) - math.log(1 - math.tanh(mean) ** 2)


def test_the_target_judges_each_choice_with_its_own_numbers(worlds):
    algo = make(worlds, temperature={"initial": 0.5})
    set_policy(algo, [math.log(3.0), 0.0], [0.3, -0.2])
    set_values(algo.nets["critic"], ((9, 9), (9, 9)), ((9, 9), (9, 9)))
    set_values(algo.nets["critic_target"], ((1, 1), (2, 2)), ((3, 3), (1, 4)))
    batch = mixed_transitions(worlds)
    # Next state 4: of choice 0 the first critic says least, 4 + tanh 0.3, of choice 1 the second, 4 + 4 tanh -0.2.
    of_0 = 4 + math.tanh(0.3) - 0.5 * density(0.3) - 0.5 * math.log(0.75)
    of_1 = 4 + 4 * math.tanh(-0.2) - 0.5 * density(-0.2) - 0.5 * math.log(0.25)
    wanted = 1 + 0.5 * (0.75 * of_0 + 0.25 * of_1)
    goes_on, ends = (worlds.only(batch, row, 1000) for row in (0, 1))
    assert worlds.losses(algo, goes_on)["Q_Targets"] == pytest.approx(wanted, abs=0.02)
    assert worlds.losses(algo, ends)["Q_Targets"] == 0.5


def test_critics_learn_the_choice_and_the_number_that_were_taken(worlds):
    algo = make(worlds)
    set_values(algo.nets["critic"], ((1, 2), (9, 9)), ((0, 0), (9, 9)))
    batch = mixed_transitions(worlds)
    batch["discounts"] = torch.zeros(2)
    batch["actions"] = torch.tensor([[1.0, 0.0, 0.5], [1.0, 0.0, -0.5]])
    info = worlds.losses(algo, batch)
    # States 1, 2 with 0.5, -0.5: values 2, 1 and 0, 0; targets 1, 0.5.
    assert info["Critic_Loss"] == pytest.approx((1 + 0.25) / 2 + (1 + 0.25) / 2)


def test_the_actor_climbs_in_the_choice_and_in_the_number_of_each(worlds):
    algo = make(worlds, temperature={"initial": 1e-9, "tuned": False})
    set_policy(algo, [math.log(3.0), 0.0], [0.0, 0.0])
    set_values(algo.nets["critic"], ((1, 2), (3, -4)), ((1, 2), (3, -4)))
    set_values(algo.nets["critic_target"], ((50, 0), (50, 0)), ((50, 0), (50, 0)))
    info = worlds.gradients(algo, mixed_transitions(worlds))
    # Mean state 1.5: values 1.5 and 4.5.
    assert info["Actor_Loss"] == pytest.approx(-(0.75 * 1.5 + 0.25 * 4.5), abs=1e-3)
    head = algo.actor.head
    # p0 p1 (q1 - q0) = 3/16 3; numbers: -p_c b_c.
    slope = 0.1875 * 3
    assert head.choice.logits.bias.grad.tolist() == pytest.approx([slope, -slope], abs=1e-3)
    assert head.numbers.mean.bias.grad.tolist() == pytest.approx([-0.75 * 2, 0.25 * 4], abs=1e-3)


def test_each_temperature_has_its_own_target(worlds):
    algo = make(worlds, temperature={"initial": 0.5, "choice_entropy": 0.6})
    set_policy(algo, [0.0, 0.0], [0.0, 0.0])
    algo.train_on_batch(mixed_transitions(worlds), 1)
    # The numbers have all but no noise, the choice is a fair coin.
    info = worlds.losses(algo, mixed_transitions(worlds))
    assert info["Temperature"] > 0.5 > info["Choice_Temperature"]


@pytest.mark.parametrize(("given", "target"), [({}, -1.0), ({"target_entropy": -2.0}, -2.0)])
def test_the_slope_of_each_temperature_is_the_entropy_above_its_target(worlds, given, target):
    """The loss is the sum of log(alpha) (entropy - target)."""
    algo = make(worlds, temperature={"initial": 0.5, "choice_entropy": 0.6, **given})
    info = worlds.gradients(algo, mixed_transitions(worlds))
    wanted = [info["Entropy"] - target, info["Choice_Entropy"] - 0.6 * math.log(2)]
    assert algo.nets["temperature"].log.grad.tolist() == pytest.approx(wanted, abs=1e-5)


def test_what_is_logged_of_each_temperature(worlds):
    algo = make(worlds)
    algo.nets["temperature"].log.data = torch.log(torch.tensor([0.5, 0.25]))
    info = worlds.losses(algo, mixed_transitions(worlds))
    assert info["Temperature"] == pytest.approx(0.5)
    assert info["Choice_Temperature"] == pytest.approx(0.25)


def test_validation_compares_whole_actions(worlds):
    """A choice that differs is not a count of its own here: numbers differ too."""
    algo = make(worlds)
    set_policy(algo, [1.0, 0.0], [0.0, 0.0])
    info = algo.train_on_batch(mixed_transitions(worlds), 1, validate=True)
    # It takes (1, 0, 0): differences 0, 0, 0.5 and 1, 1, 0.5.
    assert info["Action_Error"].item() == pytest.approx(3.0 / 6, abs=1e-5)


def test_the_numbers_entropy_is_weighed_by_the_choices(worlds):
    algo = make(worlds)
    set_policy(algo, [math.log(3.0), 0.0], [2.0, 0.0])
    info = worlds.losses(algo, worlds.only(mixed_transitions(worlds), 0, copies=5000))
    expected = -(0.75 * density(2.0) + 0.25 * density(0.0))
    assert info["Entropy"] == pytest.approx(expected, abs=0.05)
    assert info["Choice_Entropy"] == pytest.approx(0.5623, abs=1e-4)


def test_it_learns_the_choice_and_the_number_that_pays_with_it(worlds):
    """Choice 0 pays for low numbers, choice 1 twice as much for high ones: no number is good for both."""
    temperature = {"initial": 0.02, "tuned": False}
    algo = worlds.make_algo(
        "sac",
        {"num_choices": 2, "num_continuous": 1, "temperature": temperature},
        action=3,
        hidden=(32,),
    )
    generator = torch.Generator().manual_seed(0)
    choice = torch.randint(2, (256,), generator=generator)
    number = torch.rand(256, generator=generator) * 2 - 1
    batch = worlds.bandit() | {
        "actions": torch.cat([torch.eye(2)[choice], number[:, None]], dim=-1),
        "rewards": torch.where(choice == 1, 2 * number, -number),
    }
    for name in ("actor", "critic"):
        algo.optimizers[name].param_groups[0]["lr"] = 5e-3
    state = {"s": torch.ones(1, 1)}

    def learned():
        algo.reset()
        action = algo.get_action(state)[0].tolist()
        with torch.no_grad():
            means = algo.actor.head(algo.actor(state)[0]).numbers.mean[0, :, 0].tolist()
        right = action[:2] == [0.0, 1.0] and action[2] > 0.6
        return right and means[0] < -0.5 and means[1] > 0.6

    assert worlds.learns(algo, batch, 600, learned)
