import math

import pytest
import torch

from imitate.models.mixed import MixedHead


def head(choices=2, numbers=1, std=0.5):
    torch.manual_seed(0)
    made = MixedHead(
        1, choices, numbers, min_std=std, max_std=std, use_tanh=True, std_activation="exp"
    )
    for linear in (made.choice.logits, made.numbers.mean):
        linear.weight.data.zero_()
    made.choice.logits.bias.data = torch.tensor([math.log(3.0)] + [0.0] * (choices - 1))
    made.numbers.mean.bias.data = torch.linspace(-1, 1, choices * numbers)
    return made


def test_the_likeliest_choice_comes_with_the_mean_of_its_own_numbers():
    made = head()
    assert made.act(torch.ones(1, 1))[0].tolist() == pytest.approx([1, 0, math.tanh(-1)])
    made.choice.logits.bias.data = torch.tensor([0.0, 1.0])
    assert made.act(torch.ones(1, 1))[0].tolist() == pytest.approx([0, 1, math.tanh(1)])


def test_samples_of_a_choice_are_samples_of_its_numbers():
    drawn = head(std=1e-4).act(torch.ones(20_000, 1), explore=True)
    first = drawn[:, 0] == 1
    assert first.float().mean().item() == pytest.approx(0.75, abs=0.02)
    assert drawn[first, 2].mean().item() == pytest.approx(math.tanh(-1), abs=1e-3)
    assert drawn[~first, 2].mean().item() == pytest.approx(math.tanh(1), abs=1e-3)


def test_log_prob_is_that_of_the_choice_and_of_its_numbers():
    actions = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    # tanh(0) = 0, where the slope of tanh is 1; the means are -1 and 1, two standard deviations away.
    density = -0.5 * 4 - math.log(0.5) - 0.5 * math.log(2 * math.pi)
    expected = [math.log(0.75) + density, math.log(0.25) + density]
    found = head()(torch.ones(2, 1)).log_prob(actions)
    assert found.tolist() == pytest.approx(expected, abs=1e-4)


def test_numbers_lie_by_choice():
    policy = head(choices=3, numbers=2)(torch.ones(4, 1))
    assert policy.numbers.mean.shape == (4, 3, 2)
    assert policy.numbers.mean[0, 1].tolist() == pytest.approx([math.tanh(-0.2), math.tanh(0.2)])
    assert policy.sample().shape == policy.mean.shape == (4, 5)
