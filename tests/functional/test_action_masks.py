"""Masked scores and uniform draws of allowed choices, by hand."""

import math

import torch

from imitate.functional.action_masks import FORBIDDEN, masked, uniform_choice

MASK = torch.tensor([[True, False, True, True], [False, True, False, False]])


def test_forbidden_choices_have_no_probability_and_entropies_stay_finite():
    scores = masked(torch.zeros(2, 4), MASK)
    assert scores[0].tolist() == [0.0, FORBIDDEN, 0.0, 0.0]
    chances = scores.softmax(-1)
    torch.testing.assert_close(chances[0], torch.tensor([1 / 3, 0.0, 1 / 3, 1 / 3]))
    assert chances[1].tolist() == [0.0, 1.0, 0.0, 0.0]
    entropy = -(chances * scores.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(entropy, torch.tensor([math.log(3), 0.0]))


def test_without_a_mask_scores_are_as_they_are():
    scores = torch.randn(2, 4)
    assert masked(scores, None) is scores


def test_each_allowed_choice_has_its_part_of_the_unit_interval():
    shares = torch.tensor([0.0, 0.33, 0.34, 0.66, 0.67, 0.999])
    rows = MASK[:1].expand(6, -1)
    assert uniform_choice(shares, rows, 4).tolist() == [0, 0, 2, 2, 3, 3]
    assert uniform_choice(shares, MASK[1:].expand(6, -1), 4).tolist() == [1] * 6


def test_without_a_mask_all_choices_are_alike():
    shares = torch.tensor([0.0, 0.24, 0.25, 0.5, 0.75, 0.999, 1.0])
    assert uniform_choice(shares, None, 4).tolist() == [0, 0, 1, 2, 3, 3, 3]


def test_where_nothing_is_allowed_the_number_is_a_choice_all_the_same():
    assert uniform_choice(
        torch.tensor([0.9]), torch.zeros(1, 3, dtype=torch.bool), 3
    ).item() in range(3)
