"""Returns, advantages and the losses of values and policies, by hand."""

import math

import numpy as np
import pytest
import torch

from imitate.algo.base.adversarial import discriminator_loss, with_absorbing_state
from imitate.algo.cql import calibrated, sampled_logsumexp, uniform_log_density
from imitate.data.batches.rewards import returns_to_go
from imitate.functional.losses import advantage_weights, expectile_loss
from imitate.functional.policy_gradient import (
    clipped_share,
    clipped_surrogate,
    clipped_value_error,
    divergence_of_ratios,
    explained_variance,
    generalized_advantages,
)
from imitate.models.categorical import FORBIDDEN, masked, uniform_choice


@pytest.mark.parametrize(
    ("rewards", "terminals", "lengths", "discount", "continues", "wanted"),
    [
        # Two episodes: 4; 2 + 4/2; 1 + 4/2 | 10; 8 + 10/2.
        ([1, 2, 4, 8, 10], [0, 0, 1, 0, 1], [3, 2], 0.5, False, [3, 4, 4, 13, 10]),
        ([1, 2, 3], [0, 0, 0], [3], 1.0, False, [6, 5, 3]),
        # What comes after a terminal does not count.
        ([1, 2, 4], [0, 1, 0], [3], 0.5, False, [2, 2, 4]),
        # -1 for ever at discount 0.9: -10, whatever the step. The second one ended: -1.9, -1.
        ([-1] * 4, [0, 0, 0, 1], [2, 2], 0.9, True, [-10, -10, -1.9, -1]),
        ([-1, 0], [0, 0], [2], 0.9, True, [-1, 0]),  # a solved task goes on with nothing
        ([], [], [], 0.9, False, []),
    ],
)
def test_returns_to_go_by_hand(rewards, terminals, lengths, discount, continues, wanted):
    ends = np.cumsum(lengths, dtype=int)
    steps = (np.array(x, dtype=np.float32) for x in (rewards, terminals))
    options = {"continue_truncated": True} if continues else {}
    found = returns_to_go(*steps, ends - np.array(lengths, dtype=int), ends, discount, **options)
    assert found.tolist() == pytest.approx(wanted)


def column(*values):
    return np.array(values, dtype=np.float32)[:, None]


def flags(*values):
    return np.array(values, dtype=bool)[:, None]


REWARDS = column(1, 2, 4, 8)
VALUES = column(0.5, 1, 1.5, 2)
NONE = flags(0, 0, 0, 0)


FOLLOWING = column(1, 1.5, 2, 3)
ENDING = column(1, 100, 10, 3)
"""Values that follow, without ends; and 100 after a terminal, 10 where the clock cut."""


@pytest.mark.parametrize(
    ("following", "terminals", "timeouts", "trace", "wanted"),
    [
        # Errors with discount 0.5: 1 + 0.5 - 0.5, 2 + 0.75 - 1, 4 + 1 - 1.5, 8 + 1.5 - 2; then 0.25 of the next each.
        (
            FOLLOWING,
            NONE,
            NONE,
            0.5,
            [1 + 0.25 * 3.09375, 1.75 + 0.25 * 5.375, 3.5 + 0.25 * 7.5, 7.5],
        ),
        (FOLLOWING, NONE, NONE, 0.0, [1, 1.75, 3.5, 7.5]),
        # With a trace of one it is the return, less the value.
        (FOLLOWING, NONE, NONE, 1.0, [4 + 3 / 16 - 0.5, 6 + 3 / 8 - 1, 8 + 0.75 - 1.5, 9.5 - 2]),
        (ENDING, flags(0, 1, 0, 0), flags(0, 0, 1, 0), 0.5, [1 + 0.25, 2 - 1, 4 + 5 - 1.5, 7.5]),
    ],
)
def test_advantages_by_hand(following, terminals, timeouts, trace, wanted):
    given = (REWARDS, VALUES, following, terminals, timeouts)
    assert generalized_advantages(*given, 0.5, trace)[:, 0].tolist() == wanted
    last = generalized_advantages(*(x[-1:] for x in given), 0.5, trace)  # a single step
    assert last.tolist() == [[7.5]]


def test_environments_do_not_mix():
    both = np.concatenate([REWARDS, 2 * REWARDS], axis=1)
    zeros = np.zeros_like(both)
    ends = np.concatenate([NONE, flags(0, 1, 0, 0)], axis=1)
    found = generalized_advantages(both, zeros, zeros, ends, np.zeros_like(ends), 0.5, 1.0)
    assert found.tolist() == [[4, 4], [6, 4], [8, 16], [8, 16]]


def test_expectile_loss_by_hand():
    error = torch.tensor([2.0, -2.0, 0.0, -0.5])
    torch.testing.assert_close(expectile_loss(error, 0.9), torch.tensor([3.6, 0.4, 0.0, 0.025]))
    torch.testing.assert_close(expectile_loss(error, 0.5), error.square() / 2)


@pytest.mark.parametrize("expectile", [0.5, 0.7, 0.9])
def test_its_minimum_is_the_expectile(expectile):
    """Of 0 and 1 alike often: tau (1 - v) = (1 - tau) v, so v = tau."""
    values = torch.linspace(0, 1, 1001)
    targets = torch.tensor([0.0, 1.0])
    losses = expectile_loss(targets - values[:, None], expectile).mean(-1)
    assert float(values[losses.argmin()]) == pytest.approx(expectile, abs=1e-3)


def test_weights_by_hand():
    advantage = torch.tensor([0.0, 1.0, -1.0, 10.0], requires_grad=True)
    weights = advantage_weights(advantage, temperature=2.0)
    expected = [1.0, math.exp(0.5), math.exp(-0.5), math.exp(5.0)]
    torch.testing.assert_close(weights, torch.tensor(expected))
    assert not weights.requires_grad


def test_clips():
    advantage = torch.tensor([1.0, 10.0])
    assert advantage_weights(advantage, 1.0, max_weight=100.0)[1] == 100.0
    clipped = advantage_weights(advantage, 1.0, max_advantage=2.0)
    torch.testing.assert_close(clipped, torch.tensor([math.e, math.exp(2.0)]))


def test_uniform_log_density():
    assert uniform_log_density(3) == pytest.approx(math.log(1 / 8))


def test_a_constant_value_integrates_exactly():
    # Q = 2 everywhere on [-1, 1]^2: log of 4 e^2, whatever the number of samples.
    q = torch.full((3, 5, 7), 2.0)
    log_density = torch.full((5, 7), uniform_log_density(2))
    expected = torch.full((3, 5), 2.0 + math.log(4.0))
    torch.testing.assert_close(sampled_logsumexp(q, log_density), expected)


def test_samples_are_weighted_by_their_density():
    # (e^1 / 0.5 + e^2 / 0.25) / 2.
    q = torch.tensor([[1.0, 2.0]])
    log_density = torch.tensor([[0.5, 0.25]]).log()
    expected = math.log((2 * math.e + 4 * math.e**2) / 2)
    assert sampled_logsumexp(q, log_density).item() == pytest.approx(expected)


def test_samples_of_two_distributions_together_estimate_the_integral():
    # Q(a) = 3 a on [-1, 1]: the integral of exp(Q) is (e^3 - e^-3) / 3. Half of the samples are uniform, half have the
    # density (1 + a) / 2, whose distribution function (1 + a)^2 / 4 is inverted.
    generator = torch.Generator().manual_seed(0)
    u = torch.rand(2, 1, 100_000, generator=generator, dtype=torch.float64)
    uniform, tilted = 2 * u[0] - 1, 2 * u[1].sqrt() - 1
    actions = torch.cat([uniform, tilted], dim=1)
    log_density = torch.cat([torch.full_like(uniform, 0.5).log(), ((1 + tilted) / 2).log()], dim=1)
    expected = math.log((math.exp(3) - math.exp(-3)) / 3)
    assert sampled_logsumexp(3 * actions, log_density).item() == pytest.approx(expected, abs=0.01)


def test_values_below_the_reference_are_not_pushed_further():
    q = torch.tensor([[[1.0, 5.0], [2.0, -4.0]]], requires_grad=True)
    values = calibrated(q, torch.tensor([3.0, -1.0]))
    assert values.tolist() == [[[3.0, 5.0], [2.0, -1.0]]]
    values.sum().backward()
    assert q.grad.tolist() == [[[0.0, 1.0], [1.0, 0.0]]]


RATIOS = torch.log(torch.tensor([2.0, 0.5, 1.1, 2.0, 0.5]))
"""Two ratios beyond 1 +- 0.2, one within, and the first two once more."""


def test_the_surrogate_is_clipped_where_a_larger_change_would_pay():
    advantages = torch.tensor([1.0, 1.0, 3.0, -1.0, -1.0])
    found = clipped_surrogate(RATIOS, advantages, clip=0.2)
    # Gains are held to 1.2, but too small a ratio of a good action is not; the other way round for bad actions.
    assert found.tolist() == pytest.approx([-1.2, -0.5, -3.3, 2.0, 0.8])


def test_where_it_is_clipped_there_is_no_gradient():
    ratios = RATIOS.clone().requires_grad_()
    clipped_surrogate(ratios, torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0]), clip=0.2).sum().backward()
    assert ratios.grad.tolist() == pytest.approx([0.0, -0.5, -1.1, 2.0, 0.0])


def test_values_are_clipped_around_the_old_ones_and_the_larger_error_counts():
    values, returns = torch.tensor([3.0, 6.0, 0.2]), torch.tensor([4.0, 0.0, 1.0])
    # Held to 0.5 the values are 0.5, 0.5 and 0.2.
    for clip, wanted in ((None, [1.0, 36.0, 0.64]), (0.5, [12.25, 36.0, 0.64])):
        found = clipped_value_error(values, returns, torch.zeros(3), clip)
        assert found.tolist() == pytest.approx(wanted)


def test_the_divergence_is_zero_at_equal_policies_and_else_positive():
    found = divergence_of_ratios(torch.tensor([0.0, math.log(2.0), math.log(0.5)]))
    assert found.tolist() == pytest.approx([0.0, 1.0 - math.log(2.0), -0.5 + math.log(2.0)])


def test_the_divergence_estimates_that_of_the_old_policy_from_the_new():
    old, new = torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5])
    found = old * divergence_of_ratios((new / old).log())
    torch.testing.assert_close(found.sum(), (old * (old / new).log()).sum())


def test_the_share_of_clipped_ratios():
    assert clipped_share(RATIOS, 0.2).item() == pytest.approx(4 / 5)


def test_explained_variance_by_hand():
    returns = torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = [explained_variance(x, returns).item() for x in (returns + 7, returns * 0, -returns)]
    assert found == pytest.approx([1.0, 0.0, -3.0])
    assert explained_variance(returns, torch.ones(4)).item() == 0.0


MASK = torch.tensor([[True, False, True, True], [False, True, False, False]])


def test_forbidden_choices_have_no_probability_and_entropies_stay_finite():
    scores = masked(torch.zeros(2, 4), MASK)
    assert scores[0].tolist() == [0.0, FORBIDDEN, 0.0, 0.0]
    chances = scores.softmax(-1)
    torch.testing.assert_close(chances[0], torch.tensor([1 / 3, 0.0, 1 / 3, 1 / 3]))
    assert chances[1].tolist() == [0.0, 1.0, 0.0, 0.0]
    entropy = -(chances * scores.log_softmax(-1)).sum(-1)
    torch.testing.assert_close(entropy, torch.tensor([math.log(3), 0.0]))


def test_each_allowed_choice_has_its_part_of_the_unit_interval():
    shares = torch.tensor([0.0, 0.33, 0.34, 0.66, 0.67, 0.999])
    rows = MASK[:1].expand(6, -1)
    assert uniform_choice(shares, rows, 4).tolist() == [0, 0, 2, 2, 3, 3]
    assert uniform_choice(shares, MASK[1:].expand(6, -1), 4).tolist() == [1] * 6


def test_without_a_mask_all_choices_are_alike():
    shares = torch.tensor([0.0, 0.24, 0.25, 0.5, 0.75, 0.999, 1.0])
    assert uniform_choice(shares, None, 4).tolist() == [0, 0, 1, 2, 3, 3, 3]


def test_where_nothing_is_allowed_the_number_is_a_choice_all_the_same():
    nothing = torch.zeros(1, 3, dtype=torch.bool)
    assert uniform_choice(torch.tensor([0.9]), nothing, 3).item() in range(3)


def softplus(x):
    return math.log1p(math.exp(x))


def test_each_terminal_counts_as_one_more_step_in_the_absorbing_state():
    logits, absorbing = torch.tensor([0.0, 1.0, -1.0, 2.0, 3.0]), torch.tensor(-4.0)
    expert = torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    terminals = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0])
    loss = discriminator_loss(logits, absorbing, expert, terminals)
    of_expert = (softplus(0) + softplus(-1) + softplus(4)) / 3
    of_policy = (softplus(-1) + softplus(2) + softplus(3) + 2 * softplus(-4)) / 5
    assert loss.item() == pytest.approx(of_expert + of_policy)


def test_without_terminals_the_absorbing_state_is_left_out():
    logits, expert = torch.tensor([2.0, -3.0]), torch.tensor([1.0, 0.0])
    loss = discriminator_loss(logits, torch.tensor(math.inf), expert, torch.zeros(2))
    assert loss.item() == pytest.approx(softplus(-2) + softplus(-3))


def test_one_side_alone_has_no_loss_from_the_other():
    loss = discriminator_loss(torch.ones(2), torch.tensor(5.0), torch.ones(2), torch.zeros(2))
    assert loss.item() == pytest.approx(softplus(-1))


@pytest.mark.parametrize(("discount", "steps"), [(0.5, 1.0), (0.9, 9.0), (1.0, 1000.0)])
def test_a_terminal_adds_the_return_of_the_absorbing_state(discount, steps):
    rewards, terminals = torch.tensor([1.0, 2.0]), torch.tensor([0.0, 1.0])
    found = with_absorbing_state(rewards, torch.tensor(3.0), terminals, discount)
    assert found.tolist() == pytest.approx([1.0, 2.0 + steps * 3.0], rel=1e-6)
