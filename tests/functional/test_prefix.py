"""Given actions of a chunk, by hand."""

import pytest
import torch

from imitate.functional.losses import masked_mean
from imitate.functional.prefix import Given, draw_given, given_places


def test_places_count_from_the_present_action():
    places = given_places(torch.tensor([0, 1, 3]), first=1, steps=5)
    assert places.tolist() == [
        [False, False, False, False, False],
        [False, True, False, False, False],
        [False, True, True, True, False],
    ]


def test_each_delay_is_drawn_equally_often():
    torch.manual_seed(0)
    given = draw_given(torch.zeros(40_000, 8, 2), first=2, max_delay=3)
    counts = torch.bincount(given.mask.sum(1), minlength=5)
    assert counts[4] == 0
    # Binomial: 10,000 each, with a standard deviation of 87.
    assert all(abs(int(count) - 10_000) < 450 for count in counts[:4])
    assert not given.mask[:, :2].any()
    assert not given.mask[:, 5:].any()


def test_without_a_delay_nothing_is_drawn():
    torch.manual_seed(0)
    assert draw_given(torch.zeros(4, 8, 2), first=1, max_delay=0) is None
    after = torch.rand(())
    torch.manual_seed(0)
    assert after == torch.rand(())


def test_given_actions_take_the_place_of_noisy_ones():
    given = Given(torch.full((1, 3, 1), 7.0), torch.tensor([[True, False, True]]))
    assert given.fill(torch.tensor([[[1.0], [2.0], [3.0]]])).flatten().tolist() == [7.0, 2.0, 7.0]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Two samples of three steps with errors 1 .. 6; step 0 of the first and steps 0, 1 of the second are given.
        (None, (2 + 3 + 6) / 3),
        (torch.tensor([[True, True, False], [True, True, True]]), (2 + 6) / 2),
        (torch.tensor([[1.0, 0.5, 0.0], [1.0, 1.0, 2.0]]), (0.5 * 2 + 2 * 6) / 2.5),
    ],
)
def test_the_loss_is_a_mean_over_the_remaining_actions(weight, expected):
    mask = torch.tensor([[True, False, False], [True, True, False]])
    error = torch.arange(1.0, 7.0).view(2, 3)
    given = Given(torch.zeros(2, 3, 1), mask)
    assert masked_mean(error, given.rest(weight)).item() == pytest.approx(expected)


def test_a_batch_of_which_nothing_remains_has_no_loss():
    given = Given(torch.zeros(1, 2, 1), torch.ones(1, 2, dtype=torch.bool))
    assert masked_mean(torch.ones(1, 2), given.rest(None)).item() == 0.0
