"""Draws: torch's, number by number."""

import pytest
import torch

from imitate.functional.sampling import draw_class, draw_normal, pick_class, smoothed_actions

BATCHES = [(), (1,), (5,), (40, 3)]


@pytest.mark.parametrize("batch", BATCHES)
def test_classes_are_those_of_multinomial(batch):
    logits = torch.randn(*batch, 6, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(3)
    got = [draw_class(logits) for _ in range(30)]
    torch.manual_seed(3)
    probabilities = logits.softmax(-1).reshape(-1, 6)
    expected = [torch.multinomial(probabilities, 1, True).view(batch) for _ in range(30)]
    assert torch.equal(torch.stack(got), torch.stack(expected))


@pytest.mark.parametrize("batch", BATCHES)
def test_normal_numbers_are_torchs(batch):
    mean, std = torch.randn(*batch, 4, 7), torch.rand(*batch, 4, 7)
    torch.manual_seed(3)
    got = [draw_normal(mean, std) for _ in range(3)]
    torch.manual_seed(3)
    assert torch.equal(torch.stack(got), torch.stack([torch.normal(mean, std) for _ in range(3)]))


def test_frequencies():
    weights = torch.tensor([0.1, 0.0, 0.6, 0.3])
    drawn = draw_class(weights.log().expand(20000, 4), torch.Generator().manual_seed(0))
    torch.testing.assert_close(drawn.bincount(minlength=4) / 20000, weights, atol=0.015, rtol=0)
    assert (drawn != 1).all()


def test_draws_have_no_gradient():
    mean = torch.zeros(2, 3, requires_grad=True)
    assert not draw_normal(mean, mean.exp()).requires_grad
    assert not draw_class(mean).requires_grad


def test_pick_class():
    values = torch.arange(12.0).view(2, 3, 2)
    assert pick_class(values, torch.tensor([2, 0])).tolist() == [[4.0, 5.0], [6.0, 7.0]]


def test_smoothed_actions_clip_the_noise_and_then_the_action():
    torch.manual_seed(0)
    actions = torch.tensor([[0.0], [0.9], [-0.9]]).expand(3, 1000)
    smoothed = smoothed_actions(actions, noise_std=100.0, noise_clip=0.5)
    # Noise of this size is +-0.5 nearly always; 0.9 + 0.5 and -0.9 - 0.5 leave [-1, 1].
    assert set(smoothed[0].tolist()) >= {-0.5, 0.5}
    assert smoothed[1].max() == 1.0 and smoothed[1].min() == pytest.approx(0.4)
    assert smoothed[2].min() == -1.0 and smoothed[2].max() == pytest.approx(-0.4)
    spread = smoothed_actions(torch.zeros(20_000), noise_std=0.1, noise_clip=1.0).std()
    assert spread.item() == pytest.approx(0.1, rel=0.03)
