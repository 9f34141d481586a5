"""Choices with masks, by hand."""

import math

import pytest
import torch

from imitate.models.categorical import (
    FORBIDDEN,
    Categorical,
    CategoricalHead,
    Mixed,
    MixedHead,
    masked,
    one_hot,
    uniform_choice,
)
from imitate.models.heads import Gaussian, TanhDistribution

PARTS = torch.tensor([[[0.1, 0.2, 0.3, 0.4], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1]]])
"""Probabilities (1, 3, 4)."""


def test_a_distribution_over_the_last_axis():
    choices = Categorical(PARTS.log() + 5.0)
    torch.testing.assert_close(choices.logits, PARTS.log())
    torch.testing.assert_close(choices.probabilities, PARTS)
    entropy = -(PARTS * PARTS.log()).sum(-1)
    torch.testing.assert_close(choices.entropy(), entropy)
    assert choices.mean.argmax(-1).tolist() == [[3, 0, 0]]
    chosen = one_hot(torch.tensor([[1, 2, 0]]), PARTS)
    assert chosen.tolist() == [[[0, 1, 0, 0], [0, 0, 1, 0], [1, 0, 0, 0]]]
    torch.testing.assert_close(choices.log_prob(chosen).exp(), torch.tensor([[0.2, 0.25, 0.7]]))
    drawn = Categorical(PARTS.log().expand(4000, 3, 4)).sample(torch.Generator().manual_seed(0))
    assert drawn.sum(-1).eq(1.0).all()
    torch.testing.assert_close(drawn.mean(0), PARTS[0], atol=0.03, rtol=0.0)


def test_what_is_forbidden_has_probability_0():
    allowed = torch.tensor([False, True, True, False]).expand(1, 3, 4)
    restricted = Categorical(PARTS.log()).restricted(allowed)
    torch.testing.assert_close(
        restricted.probabilities[0, 0], torch.tensor([0.0, 0.4, 0.6, 0.0]), atol=1e-6, rtol=0.0
    )
    assert restricted.entropy().isfinite().all()
    scores = torch.tensor([1.0, 2.0])
    assert masked(scores, torch.tensor([True, False])).tolist() == [1.0, FORBIDDEN] == [1.0, -1e8]
    assert masked(scores, None) is scores


@pytest.mark.parametrize(
    ("share", "mask", "choice"),
    [
        (0.0, None, 0),
        (0.49, None, 1),
        (0.51, None, 2),
        (0.999, None, 3),
        (1.0, None, 3),  # rounded up
        (0.0, [0, 1, 0, 1], 1),
        (0.49, [0, 1, 0, 1], 1),
        (0.5, [0, 1, 0, 1], 3),
        (1.0, [0, 1, 0, 1], 3),
        (0.7, [0, 0, 0, 0], 0),  # nothing is allowed
    ],
)
def test_a_uniform_choice(share, mask, choice):
    allowed = None if mask is None else torch.tensor([mask], dtype=torch.bool)
    assert uniform_choice(torch.tensor([share]), allowed, 4).tolist() == [choice]


def mixed():
    numbers = torch.arange(8.0).reshape(1, 4, 2) / 10
    each = TanhDistribution(Gaussian(numbers, torch.full((1, 4, 2), 0.5)))
    return Mixed(Categorical(PARTS[:, 0].log()), each), numbers


def test_numbers_depend_on_the_choice():
    both, numbers = mixed()
    wanted = torch.tensor([[0.0, 0.0, 0.0, 1.0, math.tanh(0.6), math.tanh(0.7)]])
    torch.testing.assert_close(both.mean, wanted)
    action = torch.tensor([[0.0, 1.0, 0.0, 0.0, 0.1, -0.2]])
    alone = TanhDistribution(Gaussian(numbers[:, 1], torch.full((1, 2), 0.5)))
    density = math.log(0.2) + alone.log_prob(torch.tensor([[0.1, -0.2]]))
    torch.testing.assert_close(both.log_prob(action), density)
    drawn = both.sample(torch.Generator().manual_seed(0))
    assert drawn.shape == (1, 6) and drawn[:, :4].sum() == 1.0
    only = both.restricted(torch.tensor([[True, False, False, False]]))
    assert only.mean[0, :4].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert only.numbers is both.numbers


def test_heads():
    torch.manual_seed(0)
    features = torch.randn(500, 3)
    head = CategoricalHead(3, 4)
    torch.testing.assert_close(head(features).logits, head.logits(features).log_softmax(-1))
    likely = head(features).mean
    assert torch.equal(head.act(features), likely)
    explored = head.act(features, True, torch.Generator().manual_seed(0))
    assert explored.shape == (500, 4) and not torch.equal(explored, likely)
    head = MixedHead(3, 4, 2, use_tanh=True)
    found, base = head(features), head.numbers(features).base
    torch.testing.assert_close(found.numbers.base.mean, base.mean.reshape(500, 4, 2))
    torch.testing.assert_close(found.numbers.base.stds, base.stds.reshape(500, 4, 2))
    assert torch.equal(head.act(features), found.mean)
    explored = head.act(features, True, torch.Generator().manual_seed(0))
    assert explored.shape == (500, 6) and not torch.equal(explored, found.mean)
