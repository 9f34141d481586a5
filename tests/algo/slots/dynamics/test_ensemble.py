"""Ensemble dynamics: losses, bounds and predictions by hand; own bootstraps; what it learns of a linear world."""

import math

import pytest
import torch

from imitate.algo.slots.ensemble import Ensemble, EnsembleConfig
from imitate.functional.sampling import bootstrap_counts


def make(state=1, **settings):
    torch.manual_seed(0)
    settings = {"members": 2, "layer_dims": (), "ends": False, **settings}
    return Ensemble(EnsembleConfig(**settings), {"s": (state,)}, 1)


def set_head(model, *members):
    """Outputs without inputs: member m predicts ``members[m]``."""
    torch.nn.init.zeros_(model.head.weight)
    model.head.bias.data = torch.tensor(members)


def batch(index, **more):
    """States 1 and 2, actions 1 and -1; the first goes on to 4 with reward 1, the second ends in 0 with reward 0.5."""
    return {
        "obs": {"s": torch.tensor([[1.0], [2.0]])},
        "next_obs": {"s": torch.tensor([[4.0], [0.0]])},
        "actions": torch.tensor([[1.0], [-1.0]]),
        "rewards": torch.tensor([1.0, 0.5]),
        "discounts": torch.tensor([0.9, 0.0]),
        "weight": None,
        "index": torch.tensor(index),
        **more,
    }


# Counts of samples 1 and 2: member 0 has them 0 and 3 times, member 1 has them 2 and 0 times.
COUNTS = bootstrap_counts(torch.tensor([1, 2]), 2)


def test_counts_of_the_samples_below():
    assert COUNTS.tolist() == [[0, 3], [2, 0]]


def test_deterministic_loss_by_hand():
    model = make()
    set_head(model, [1.0, 0.0], [0.0, 0.0])  # change of the state, reward
    # Changes are 3 and -2. Member 0: (-2 - 1)^2 = 9 and 0.5^2, thrice, of two samples; member 1: 9 and 1, twice.
    wanted = (3 * 0.5 * (9 + 0.25) / 2 + 2 * 0.5 * (9 + 1) / 2) / 2
    loss, info = model.loss(batch([1, 2]))
    assert loss.item() == pytest.approx(wanted)
    assert info["Dynamics_Disagreement"].item() == pytest.approx(0.25)
    # Samples that do not count: only the first does, which is in the bootstrap of member 1 alone.
    loss, _ = model.loss(batch([1, 2], weight=torch.tensor([1.0, 0.0])))
    assert loss.item() == pytest.approx(2 * 0.5 * (9 + 1) / 2)


def test_errors_are_in_units_of_the_targets_deviations():
    model = make()
    data = batch([1, 2])
    model.follow(data)  # changes have mean 0.5 and deviation 2.5, rewards 0.75 and 0.25
    set_head(model, [0.0, 0.0], [0.0, 0.0])
    # Standardized targets are +-1: squared errors are all 1.
    assert model.loss(data)[0].item() == pytest.approx((3 * 0.5 + 2 * 0.5) / 2)
    outcome = model.step(torch.tensor([[[1.0]], [[1.0]]]), torch.zeros(2, 1, 1))
    assert outcome.states.flatten().tolist() == pytest.approx([1.5, 1.5])
    assert outcome.rewards.flatten().tolist() == pytest.approx([0.75, 0.75])
    set_head(model, [1.0, 2.0], [-1.0, 0.0])
    outcome = model.step(torch.tensor([[[1.0]], [[1.0]]]), torch.zeros(2, 1, 1))
    assert outcome.states.flatten().tolist() == pytest.approx([1 + 0.5 + 2.5, 1 + 0.5 - 2.5])
    assert outcome.rewards.flatten().tolist() == pytest.approx([0.75 + 0.5, 0.75])
    assert outcome.ends.flatten().tolist() == [0.0, 0.0]


def test_inputs_are_standardized():
    model = make(members=1)
    model.follow(batch([1, 2]))
    torch.nn.init.ones_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    # State 2 is (2 - 1.5) / 0.5 = 1, action 1 is 1: outputs 2, in units of 2.5 about 0.5.
    outcome = model.step(torch.tensor([[[2.0]]]), torch.tensor([[[1.0]]]))
    assert outcome.states.item() == pytest.approx(2 + 0.5 + 2 * 2.5)


def softplus(x):
    return math.log1p(math.exp(x))


def test_gaussian_loss_and_bounds_by_hand():
    model = make(distribution="gaussian")
    set_head(model, [1.0, 0.0, 0.2, 3.0], [0.0, 0.0, -2.0, 0.0])

    def bounded(raw):
        below = 0.5 - softplus(0.5 - raw)
        return -10.0 + softplus(below + 10.0)

    def nll(error, raw):
        return error**2 * math.exp(-bounded(raw)) + bounded(raw)

    assert -10.0 < bounded(-20.0) < -9.9 and 0.3 < bounded(3.0) < 0.5
    squares = 3 * (nll(-3, 0.2) + nll(0.5, 3.0)) / 2 + 2 * (nll(3, -2.0) + nll(1, 0.0)) / 2
    wanted = squares / 2 + 0.01 * 2 * 10.5
    assert model.loss(batch([1, 2]))[0].item() == pytest.approx(wanted, rel=1e-5)


def test_gaussian_predictions_have_the_predicted_spread():
    model = make(distribution="gaussian", members=1)
    set_head(model, [1.0, -2.0, math.log(0.25), -30.0])
    size = 20_000
    zeros = torch.zeros(1, size, 1)
    outcome, again = (model.step(zeros, zeros, torch.Generator().manual_seed(0)) for _ in range(2))
    spread = math.exp(0.5 * (0.5 - softplus(0.5 - math.log(0.25))))
    assert outcome.states.mean().item() == pytest.approx(1.0, abs=0.02)
    assert outcome.states.std().item() == pytest.approx(spread, rel=0.03)
    assert outcome.rewards.std().item() == pytest.approx(math.exp(-5.0), rel=0.05)
    assert torch.equal(again.states, outcome.states)


def test_ends_by_hand():
    model = make(ends=True)
    set_head(model, [3.0, 1.0, 2.0], [3.0, 1.0, -1.0])
    # Of the bootstraps: member 0 thrice the second, which ends; member 1 twice the first, predicted without error.
    squares = 3 * 0.5 * (25 + 0.25) / 2
    entropy = 3 * softplus(-2.0) + 2 * softplus(-1.0)
    assert model.loss(batch([1, 2]))[0].item() == pytest.approx((squares + entropy) / 2)
    ends = model.step(torch.zeros(2, 1, 1), torch.zeros(2, 1, 1)).ends
    assert ends.flatten().tolist() == pytest.approx([1 / (1 + math.exp(-2)), 1 / (1 + math.e)])
    assert make(ends=True).head.bias[:, -1].tolist() == [-5.0, -5.0]


def test_a_member_learns_nothing_of_what_is_not_in_its_bootstrap():
    model = make()
    model.loss(batch([1, 1]))[0].backward()  # 0 times in that of member 0
    assert (model.head.weight.grad[0] == 0).all() and (model.head.weight.grad[1] != 0).any()


def world(size, seed=0):
    """Next state 0.9 s + 0.5 a, reward s - a."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.rand(size, 1, generator=generator) * 2 - 1
    actions = torch.rand(size, 1, generator=generator) * 2 - 1
    return {
        "obs": {"s": states},
        "next_obs": {"s": 0.9 * states + 0.5 * actions},
        "actions": actions,
        "rewards": (states - actions).squeeze(-1),
        "discounts": torch.full((size,), 0.9),
        "weight": None,
        "index": torch.arange(size),
    }


@pytest.mark.parametrize("distribution", ["deterministic", "gaussian"])
def test_it_learns_the_world_and_its_members_agree_there_alone(distribution):
    model = make(members=3, layer_dims=(32,), distribution=distribution)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    data = world(64)
    for _ in range(200):
        model.follow(data)
        optimizer.zero_grad()
        model.loss(data)[0].backward()
        optimizer.step()

    def means(states, actions):
        size = (3, -1, -1)
        draws = [model.step(states.expand(size), actions.expand(size)).states for _ in range(50)]
        return torch.stack(draws).mean(0)

    test = world(100, seed=1)
    predicted = means(test["obs"]["s"], test["actions"])
    assert (predicted - test["next_obs"]["s"]).abs().mean() < 0.05
    far = means(test["obs"]["s"] + 8.0, test["actions"])
    assert far.std(0).mean() > 5 * predicted.std(0).mean()
