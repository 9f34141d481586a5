"""Planning by search: each step of each method by hand, and that problems of a batch leave each other alone."""

import math

import pytest
import torch

from imitate.algo.slots.planner import cem, mppi, random_shooting, shifted


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Judge:
    """Gives the P plans of each search these scores, whatever they are, and keeps them."""

    def __init__(self, *scores):
        self.scores, self.plans = torch.tensor(scores), []

    def __call__(self, plans):
        self.plans.append(plans.clone())
        return self.scores.expand(len(plans), -1)


def goals(*wanted):
    """Score of plans: minus the squared distance to one number for each problem."""
    aims = torch.tensor(wanted).view(-1, 1, 1, 1)
    return lambda plans: -(plans - aims).square().sum((-1, -2))


def test_a_shifted_plan_ends_in_the_middle_of_the_limits():
    plan = torch.tensor([[[0.1], [0.2], [0.3]], [[0.9], [0.9], [0.9]]])
    expected = torch.tensor([[[0.2], [0.3], [0.0]], [[0.9], [0.9], [0.0]]])
    torch.testing.assert_close(shifted(plan), expected)


def test_random_shooting_takes_the_plan_of_the_highest_score():
    judge = Judge(0.0, 2.0, 1.0)
    best = random_shooting(judge, (2, 4, 3), 3, seeded())
    assert judge.plans[0].shape == (2, 3, 4, 3)
    torch.testing.assert_close(best, judge.plans[0][:, 1])
    assert judge.plans[0].abs().max() <= 1.0 and judge.plans[0].min() < -0.5


def test_cem_refits_mean_and_variance_to_the_elites():
    judge = Judge(0.0, 3.0, 1.0, 2.0)  # elites are the second and the fourth
    mean, std = torch.full((1, 2, 1), 0.1), torch.full((1, 2, 1), 0.2)
    settings = {"population": 4, "elites": 2, "rate": 0.75}
    found = cem(judge, mean, std, iterations=2, generator=seeded(), **settings)
    noise = [torch.empty(1, 4, 2, 1) for _ in range(2)]
    generator = seeded()
    for each in noise:
        each.normal_(generator=generator)
    first, second = judge.plans
    torch.testing.assert_close(first, (0.1 + 0.2 * noise[0]).clamp(-1, 1))
    a, b = first[:, 1], first[:, 3]
    refitted = 0.25 * 0.1 + 0.75 * (a + b) / 2
    variance = 0.25 * 0.04 + 0.75 * ((a - b) / 2) ** 2
    torch.testing.assert_close(second, (refitted + variance.sqrt() * noise[1]).clamp(-1, 1))
    last = 0.25 * refitted + 0.75 * (second[:, 1] + second[:, 3]) / 2
    torch.testing.assert_close(found, last)


def test_cem_keeps_to_the_limits_and_to_the_least_deviation():
    judge = Judge(*range(50))
    mean = torch.full((1, 1, 1), 0.95)
    found = cem(
        judge, mean, torch.ones(1, 1, 1), population=50, elites=1, iterations=3, rate=1.0, min_std=0.5
    )  # fmt: skip
    assert all(plans.abs().max() <= 1.0 for plans in judge.plans)
    assert found.abs().max() <= 1.0
    assert judge.plans[2].std() > 0.1  # one elite alone has no variance


@pytest.mark.parametrize("method", ["random_shooting", "cem", "mppi"])
def test_each_problem_of_a_batch_has_its_own_answer(method):
    def search(*wanted):
        shape = (len(wanted), 2, 1)
        mean, std = torch.zeros(shape), torch.ones(shape)
        settings = {"population": 400, "elites": 20, "iterations": 6, "generator": seeded()}
        if method == "random_shooting":
            return random_shooting(goals(*wanted), shape, 20000, seeded())
        if method == "cem":
            return cem(goals(*wanted), mean, std, **settings)
        return mppi(goals(*wanted), mean, std, inverse_temperature=50.0, **settings).mean

    found = search(0.3, -0.6)
    expected = torch.tensor([0.3, -0.6]).view(2, 1, 1).expand(2, 2, 1)
    torch.testing.assert_close(found, expected, atol=0.03, rtol=0)
    # What the other problem is makes no difference.
    torch.testing.assert_close(search(0.3, 0.9)[0], found[0])


def test_mppi_weighs_elites_by_their_scores():
    judge = Judge(0.0, -1.0, 2.0)
    mean, std = torch.zeros(1, 1, 2), torch.full((1, 1, 2), 0.3)
    found = mppi(
        judge, mean, std, population=3, elites=2, iterations=1, std_limits=(0.0, 2.0), generator=seeded()
    )  # fmt: skip
    best, second = judge.plans[0][:, 2], judge.plans[0][:, 0]
    # exp(0.5 (0 - 2)) = e^-1 beside 1.
    share = 1.0 / (1.0 + math.exp(-1.0))
    expected = share * best + (1.0 - share) * second
    torch.testing.assert_close(found.elites, torch.stack([best, second], dim=1))
    torch.testing.assert_close(found.weights, torch.tensor([[share, 1.0 - share]]))
    torch.testing.assert_close(found.mean, expected)
    variance = share * (best - expected) ** 2 + (1.0 - share) * (second - expected) ** 2
    torch.testing.assert_close(found.std, variance.sqrt())
    limited = mppi(
        judge, mean, std, population=3, elites=2, iterations=1, std_limits=(1.5, 2.0), generator=seeded()
    )  # fmt: skip
    assert (limited.std == 1.5).all()
