"""Losses and divergences against torch.distributions and numbers worked out by hand."""

import math

import pytest
import torch
import torch.distributions as D

from imitate.functional import losses


def test_cosine_loss_of_parallel_orthogonal_and_opposite_vectors():
    predicted = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [-1.0, -1.0, 0.0]])
    target = torch.tensor([[5.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, 2.0, 0.0]])
    torch.testing.assert_close(losses.cosine_loss(predicted, target), torch.tensor([0.0, 1.0, 2.0]))


def test_cosine_loss_of_a_zero_vector_is_one_and_has_a_finite_gradient():
    predicted = torch.zeros(1, 3, requires_grad=True)
    loss = losses.cosine_loss(predicted, torch.ones(1, 3))
    loss.sum().backward()
    assert loss.item() == 1.0
    assert torch.isfinite(predicted.grad).all()


def test_masked_mean():
    values = torch.tensor([[1.0, 2.0, 30.0], [4.0, 5.0, 60.0]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    assert losses.masked_mean(values).item() == 17.0
    assert losses.masked_mean(values, mask).item() == pytest.approx(7.0 / 3.0)
    weights = torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.0, 0.0]])
    assert losses.masked_mean(values, weights).item() == pytest.approx(13.0 / 4.0)


def test_masked_mean_ignores_what_stands_at_padding():
    values = torch.tensor([1.0, float("nan"), float("inf")], requires_grad=True)
    mean = losses.masked_mean(values, torch.tensor([True, False, False]))
    mean.backward()
    assert mean.item() == 1.0
    assert values.grad.tolist() == [1.0, 0.0, 0.0]


def test_masked_mean_of_nothing_is_zero():
    assert losses.masked_mean(torch.ones(3), torch.zeros(3, dtype=torch.bool)).item() == 0.0


def test_focal_loss_by_hand():
    logits = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
    target = torch.tensor([1, 0])  # with probabilities 1/2 and 3/4
    expected = torch.tensor([0.25 * math.log(2), 0.0625 * math.log(4 / 3)])
    torch.testing.assert_close(losses.focal_loss(logits, target), expected)
    cross_entropy = torch.nn.functional.cross_entropy(logits, target, reduction="none")
    torch.testing.assert_close(losses.focal_loss(logits, target, 0.0), cross_entropy)


def test_gaussian_kl_by_hand():
    # One dimension, mean 1, variance 1 against N(0, 1): 0.5. Variance e: 0.5 (e - 1 - 1).
    mean = torch.tensor([[1.0], [0.0]])
    logvar = torch.tensor([[0.0], [1.0]])
    expected = torch.tensor([0.5, 0.5 * (math.e - 2.0)])
    torch.testing.assert_close(losses.gaussian_kl_to_standard(mean, logvar), expected)


def test_gaussian_kl_is_that_of_torch():
    generator = torch.Generator().manual_seed(0)
    mean_p, logvar_p, mean_q, logvar_q = torch.randn(4, 6, 3, generator=generator).unbind()
    p = D.Independent(D.Normal(mean_p, (0.5 * logvar_p).exp()), 1)
    q = D.Independent(D.Normal(mean_q, (0.5 * logvar_q).exp()), 1)
    torch.testing.assert_close(
        losses.gaussian_kl(mean_p, logvar_p, mean_q, logvar_q), D.kl_divergence(p, q)
    )
    torch.testing.assert_close(
        losses.gaussian_kl(mean_p, logvar_p, torch.zeros(6, 3), torch.zeros(6, 3)),
        losses.gaussian_kl_to_standard(mean_p, logvar_p),
    )
    torch.testing.assert_close(
        losses.gaussian_log_prob(mean_q, mean_p, logvar_p.exp()), p.log_prob(mean_q)
    )


def test_categorical_kl_is_that_of_torch_and_of_a_hand():
    # (3/4, 1/4) against (1/2, 1/2): 3/4 log 3/2 + 1/4 log 1/2.
    p = torch.tensor([0.75, 0.25]).log() + 7.0
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert losses.categorical_kl(p, torch.zeros(2)).item() == pytest.approx(expected)
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 6, 4, generator=generator).unbind()
    torch.testing.assert_close(
        losses.categorical_kl(a, b),
        D.kl_divergence(D.Categorical(logits=a), D.Categorical(logits=b)),
    )


def test_batches_of_several_axes_are_batches_of_one():
    """Axes of different sizes, so that a sum over another one would show."""
    random = torch.Generator().manual_seed(0)
    a, b, c, d = torch.randn(4, 2, 3, 4, generator=random)
    target = torch.randint(4, (2, 3), generator=random)
    for function, *arguments in (
        (losses.cosine_loss, a, b),
        (losses.focal_loss, a, target),
        (losses.gaussian_log_prob, a, b, c.exp()),
        (losses.gaussian_kl_to_standard, a, b),
        (losses.gaussian_kl, a, b, c, d),
        (losses.categorical_kl, a, b),
    ):
        whole = function(*arguments)
        rows = [function(*(x[i, j] for x in arguments)) for i in range(2) for j in range(3)]
        torch.testing.assert_close(whole.flatten(), torch.stack(rows))


def test_cosine_loss_of_vectors_shorter_than_a_millionth():
    loss = losses.cosine_loss(torch.tensor([[1e-6, 0.0]]), torch.tensor([[3.0, 0.0]]))
    assert loss.item() == pytest.approx(0.0, abs=1e-5)


def test_expectiles_weigh_errors_by_their_sign():
    found = losses.expectile_loss(torch.tensor([2.0, -2.0, 0.0]), 0.75)
    assert found.tolist() == [0.75 * 4, 0.25 * 4, 0.0]
