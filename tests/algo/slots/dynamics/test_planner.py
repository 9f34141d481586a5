"""Planners: where a search begins, what is kept for the next one, and the noise of rollouts."""

import pytest
import torch

from imitate.algo.slots.planner import CEMConfig, MPPIConfig, RandomShootingConfig, built

CONFIGS = {
    "random_shooting": RandomShootingConfig(type="random_shooting", horizon=3, population=3000),
    "cem": CEMConfig(horizon=3, population=200, elites=10),
    "mppi": MPPIConfig(type="mppi", horizon=3, population=200, elites=10, inverse_temperature=50.0),
}
DEVICE = torch.device("cpu")


def aim(*numbers):
    """Score of plans of three actions: minus the squared distance to these."""
    wanted = torch.tensor(numbers).view(3, 1)
    return lambda plans: -(plans - wanted).square().sum((-1, -2))


@pytest.fixture(params=CONFIGS)
def planner(request):
    return built(CONFIGS[request.param], 1)


def test_the_first_action_of_the_best_plan_is_taken(planner):
    torch.manual_seed(0)
    action, plan = planner.plan(aim(0.5, -0.5, 0.2), planner.initial_plan(2, DEVICE))
    assert action.shape == (2, 1)
    torch.testing.assert_close(action, torch.full((2, 1), 0.5), atol=0.15, rtol=0)
    assert all(len(value) == 2 for value in plan.values())


@pytest.mark.parametrize("name", ["cem", "mppi"])
def test_the_next_search_begins_one_step_later(name):
    planner = built(CONFIGS[name], 1)
    torch.manual_seed(0)
    _, plan = planner.plan(aim(0.5, -0.5, 0.2), planner.initial_plan(1, DEVICE))
    expected = torch.tensor([[[-0.5], [0.2], [0.0]]])
    torch.testing.assert_close(plan["mean"], expected, atol=0.05, rtol=0)
    drawn = []

    def score(plans):
        drawn.append(plans)
        return plans.sum((-1, -2))

    planner.plan(score, plan, generator=torch.Generator().manual_seed(1))
    std = 1.0 if name == "cem" else 2.0
    noise = torch.empty(1, 200, 3, 1).normal_(generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(drawn[0], (plan["mean"] + std * noise).clamp(-1.0, 1.0))


def test_mppi_takes_an_elite_by_its_weight():
    config = MPPIConfig(
        type="mppi", horizon=3, population=50, elites=20, iterations=1, inverse_temperature=1e4
    )
    planner, drawn = built(config, 1), []

    def score(plans):
        drawn.append(plans)
        return plans[:, :, 0, 0]

    action, _ = planner.plan(score, planner.initial_plan(40, DEVICE))
    torch.testing.assert_close(action.squeeze(-1), drawn[0][:, :, 0, 0].amax(-1))


def test_mppi_explores_with_noise_around_an_elite():
    config = MPPIConfig(type="mppi", horizon=3, population=50, elites=1, std_limits=(0.2, 2.0))
    planner = built(config, 1)

    def action(explore):
        generator = torch.Generator().manual_seed(0)
        plan = planner.initial_plan(500, DEVICE)
        return planner.plan(aim(0.1, 0.0, 0.0), plan, explore=explore, generator=generator)[0]

    noise = action(True) - action(False)  # one elite: it varies no more than the floor says
    assert noise.std().item() == pytest.approx(0.2, rel=0.1)
    assert action(True).abs().max() <= 1.0


@pytest.mark.parametrize("name", ["cem", "mppi"])
def test_a_budget_ends_a_search_after_the_iteration_in_which_it_is_over(name, monkeypatch):
    now, rounds = [0.0], []
    monkeypatch.setattr("imitate.system.clock.now", lambda: now[0])
    planner = built(CONFIGS[name], 1)

    def score(plans):
        now[0] += 0.010
        rounds.append(now[0])
        return aim(0.5, -0.5, 0.2)(plans)

    def search(budget_s):
        rounds.clear()
        planner.budget_s = budget_s
        planner.plan(score, planner.initial_plan(1, DEVICE))
        return len(rounds), planner.cut, planner.searches

    assert search(None) == (5, 0, 0)
    assert search(0.025) == (3, 1, 1)  # the third iteration ends at 30 ms
    assert search(1.0) == (5, 1, 2)
    assert search(0.0) == (1, 2, 3)  # one is always made


def test_proposals_are_candidates_and_the_search_may_begin_near_them(planner):
    """Of 0.9 three times no sample comes so near: the proposal is the best candidate in each iteration."""
    seen = []

    def score(plans):
        seen.append(plans)
        return (plans == 0.9).all((-1, -2)).float()

    proposals = torch.full((2, 4, 3, 1), 0.9)
    generator = torch.Generator().manual_seed(0)
    near = torch.tensor(1.0)
    start = planner.initial_plan(2, DEVICE)
    planner.plan(score, start, generator=generator, proposals=proposals, near=near)
    population = planner.config.population
    assert all(plans.shape == (2, population, 3, 1) for plans in seen)
    assert all(torch.equal(plans[:, :4], proposals) for plans in seen)
    if (
        planner.config.type != "random_shooting"
    ):  # their mean and their std, 0, or the least of MPPI
        assert (seen[0][:, 4:] - 0.9).abs().mean() < 0.06
