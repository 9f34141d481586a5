"""Bounds of the mutual information by hand, and on Gaussians whose information is known."""

import math

import pytest
import torch

from imitate.algo.slots.mutual_information import InformationEstimator


def fixed(estimator, joint, product):
    """An estimator whose critic gives these values to samples of P, and then of Q."""
    made = InformationEstimator(1, 1, estimator=estimator)
    values = [torch.tensor(joint), torch.tensor(product)]
    made.scores = lambda *_: values[0] if values.append(values.pop(0)) else values[-1]
    return made


EXPONENTIAL = (1 + math.exp(-1)) / 2
BOUNDS = {
    "dv": (1.0 - 1.5, 1.5 - math.log(EXPONENTIAL)),
    "kld": (-(1.5 - EXPONENTIAL + 1), 1.5 - EXPONENTIAL + 1),
    # softplus of -1, -2 and 0: 0.3132617, 0.1269280, 0.6931472
    "jsd": (0.2200949 + 0.5032044 - 1.3862944, 1.5),
}


@pytest.mark.parametrize("estimator", BOUNDS)
def test_loss_and_estimate(estimator):
    x = torch.zeros(2, 1)
    loss, value = fixed(estimator, [1.0, 2.0], [0.0, -1.0]).loss(x, x)
    assert (loss.item(), value.item()) == pytest.approx(BOUNDS[estimator], abs=1e-6)


def test_masked_rows_do_not_count():
    x, mask = torch.zeros(2, 1), torch.tensor([True, False])
    _, value = fixed("kld", [1.0, 9.0], [0.0, 9.0]).loss(x, x, None, mask)
    assert value.item() == pytest.approx(1.0 - 1.0 + 1.0)


def test_the_denominator_of_dv_is_a_moving_average():
    made = InformationEstimator(1, 1, estimator="dv", average_rate=0.5)
    answers = [[0.0], [math.log(2.0)], [0.0], [math.log(6.0)]]
    made.scores = lambda *_: torch.tensor(answers.pop(0))
    x = torch.zeros(1, 1)
    made.loss(x, x)
    assert made.average.item() == pytest.approx(2.0)
    loss, value = made.loss(x, x)
    assert made.average.item() == pytest.approx(4.0)
    assert loss.item() == pytest.approx(6.0 / 4.0)
    assert value.item() == pytest.approx(-math.log(6.0))


def test_pairs_of_the_product_are_made_of_the_next_row():
    made = InformationEstimator(1, 1, estimator="kld")
    rows = torch.arange(3.0)[:, None]
    assert made.independent(rows, None)[:, 0].tolist() == [2.0, 0.0, 1.0]


def learned(estimator, correlation, given=False):
    """The information of two Gaussians, of which a third that both know is taken away if there is one."""
    torch.manual_seed(0)
    made = InformationEstimator(
        1, 1, condition_dim=int(given), estimator=estimator, layer_dims=(64, 64)
    )
    optimizer = torch.optim.Adam(made.parameters(), 2e-3)

    def draw(count):
        x, noise, known = torch.randn(3, count, 1)
        y = correlation * x + math.sqrt(1 - correlation**2) * noise
        return (x, y + known, known) if given else (x, y, None)

    for _ in range(600):
        x, y, known = draw(256)
        loss, _ = made.loss(x, y, known)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        made.follow(y)
    with torch.no_grad():
        return made.loss(*draw(20000))[1].item()


@pytest.mark.nightly
@pytest.mark.parametrize("correlation", [0.5, 0.9])
@pytest.mark.parametrize("estimator", ["dv", "kld", "ml"])
def test_the_information_of_correlated_gaussians(estimator, correlation):
    # three seeds are within 7 %
    expected = -0.5 * math.log(1 - correlation**2)
    assert learned(estimator, correlation) == pytest.approx(expected, rel=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize("estimator", ["kld", "jsd", "ml"])
def test_the_information_given_what_both_know(estimator):
    assert learned(estimator, 0.9, given=True) == pytest.approx(0.8304, rel=0.1)
