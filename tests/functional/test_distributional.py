"""The categorical projection atom by atom, worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imitate.functional.losses import (
    categorical_cross_entropy,
    expected_value,
    make_atoms,
    project_categorical,
    quantile_regression_loss,
    shifted_atoms,
)

ATOMS = torch.tensor([-1.0, 0.0, 1.0, 2.0])


def test_atoms_are_evenly_spaced():
    assert make_atoms(-1.0, 2.0, 4).tolist() == ATOMS.tolist()


@pytest.mark.parametrize(
    ("values", "probabilities", "wanted"),
    [
        ([0.25], [1.0], [0.0, 0.75, 0.25, 0.0]),  # split by nearness
        ([-0.5], [0.5], [0.25, 0.25, 0.0, 0.0]),
        *(
            ([atom], [1.0], [float(atom == other) for other in range(-1, 3)])
            for atom in range(-1, 3)
        ),
        ([-7.0, 9.0], [0.25, 0.75], [0.25, 0.0, 0.0, 0.75]),  # beyond the ends
        # A backup, r 0.5 and discount 0.5: the atoms have moved to 0, 0.5, 1, 1.5.
        # Atom 0: 0.1 + half of 0.2; atom 1: half of 0.2 + 0.3 + half of 0.4; atom 2: half of 0.4.
        ([0.0, 0.5, 1.0, 1.5], [0.1, 0.2, 0.3, 0.4], [0.0, 0.2, 0.6, 0.2]),
        ([-1.0, 0.0, 1.0, 2.0], [0.1, 0.2, 0.3, 0.4], [0.1, 0.2, 0.3, 0.4]),
        ([1.75] * 4, [0.1, 0.2, 0.3, 0.4], [0.0, 0.0, 0.25, 0.75]),  # at a terminal
    ],
)
def test_a_projection_by_hand(values, probabilities, wanted):
    given = torch.tensor([probabilities]), torch.tensor([values], dtype=torch.float32)
    torch.testing.assert_close(project_categorical(*given, ATOMS)[0], torch.tensor(wanted))


@given(
    st.lists(st.floats(-50.0, 50.0), min_size=1, max_size=8),
    st.integers(2, 60),
    st.floats(0.1, 30.0),
)
def test_mass_is_kept_and_inside_the_atoms_the_mean(values, num_atoms, high):
    atoms = make_atoms(-3.0, high, num_atoms).double()
    inside = torch.tensor([values], dtype=torch.float64).clamp(-3.0, high)
    probabilities = torch.full_like(inside, 1.0 / inside.shape[1])
    projected = project_categorical(probabilities, inside, atoms)
    assert projected.min() >= 0
    assert projected.sum().item() == pytest.approx(1.0, abs=1e-6)
    mean = inside.mean().clamp(atoms[0], atoms[-1]).item()
    assert (projected @ atoms).item() == pytest.approx(mean, abs=1e-4)


def test_expected_value_by_hand():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [0.1, 0.2, 0.3, 0.4]])
    logits[1] = logits[1].log()
    torch.testing.assert_close(expected_value(logits, ATOMS), torch.tensor([0.5, 1.0]))


def test_cross_entropy_by_hand_and_least_at_the_target():
    target = torch.tensor([0.25, 0.75])
    loss = categorical_cross_entropy(torch.tensor([0.5, 0.5]).log(), target)
    assert loss.item() == pytest.approx(0.6931472)
    logits = target.log().requires_grad_()
    categorical_cross_entropy(logits, target).backward()
    torch.testing.assert_close(logits.grad, torch.zeros(2))


def test_quantile_regression_by_hand():
    quantiles, samples = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 3.0]])
    # Places 1/4, 3/4. Errors of quantile 0: 0.5, 3; of quantile 1: -0.5, 2.
    plain = 0.25 * (0.5 + 3.0) / 2 + (0.25 * 0.5 + 0.75 * 2.0) / 2
    rounded = 0.25 * (0.125 + 2.5) / 2 + (0.25 * 0.125 + 0.75 * 1.5) / 2
    for huber, wanted in ((False, plain), (True, rounded)):
        loss = quantile_regression_loss(quantiles, samples, huber=huber)
        assert loss.tolist() == [pytest.approx(wanted)]


def test_quantile_regression_is_a_mean_over_samples_and_a_sum_over_quantiles():
    # The median alone, half of the mean of 1, 3 and 5; then places 1/4 and 3/4 at one sample, 2 away from both.
    samples = torch.tensor([1.0, 3.0, 5.0])
    of_three = quantile_regression_loss(torch.tensor([0.0]), samples, huber=False)
    assert of_three.item() == pytest.approx(0.5 * 3.0)
    of_two = quantile_regression_loss(torch.zeros(2), torch.tensor([2.0]), huber=False)
    assert of_two.item() == pytest.approx((0.25 + 0.75) * 2.0)


def test_batches_of_several_axes_are_batches_of_one():
    """Axes of different sizes, so that a sum over another one would show."""
    random = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, 4, generator=random)
    target = torch.rand(2, 3, 4, generator=random)
    samples = torch.randn(2, 3, 5, generator=random)
    for function, *arguments in (
        (lambda rows: expected_value(rows, ATOMS), logits),
        (lambda rows, values: project_categorical(rows, values, ATOMS), target, logits),
        (categorical_cross_entropy, logits, target),
        (quantile_regression_loss, logits, samples),
    ):
        whole = function(*arguments)
        flat = function(*(argument.flatten(0, 1) for argument in arguments))
        rows = [function(*(a[i, j][None] for a in arguments)) for i in range(2) for j in range(3)]
        torch.testing.assert_close(whole.flatten(0, 1), flat)
        torch.testing.assert_close(flat, torch.cat(rows))


def test_atoms_move_for_each_row_by_its_own_reward_and_discount():
    rewards, discounts = torch.tensor([1.0, 2.0, 3.0, 0.5, 0.0]), torch.tensor([0, 0.5, 1, 0.5, 1])
    moved = shifted_atoms(rewards, discounts, ATOMS)
    assert moved[:3].tolist() == [[1.0] * 4, [1.5, 2.0, 2.5, 3.0], [2.0, 3.0, 4.0, 5.0]]
    assert moved[3:].tolist() == [[0.0, 0.5, 1.0, 1.5], ATOMS.tolist()]


def test_the_threshold_of_the_huber_loss_is_one():
    # Errors 1.1 and 0.9 of the median: half of 1.1 - 0.5 and half of 0.81 / 2.
    for sample, expected in ((1.1, 0.5 * 0.6), (0.9, 0.5 * 0.405)):
        loss = quantile_regression_loss(torch.tensor([[0.0]]), torch.tensor([[sample]]))
        assert loss.item() == pytest.approx(expected)
