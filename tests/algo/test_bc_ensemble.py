"""Ensemble of policies: losses and uncertainties by hand, what repels the members, and a gap in the data."""

import math

import pytest
import torch

from imitate.algo.bc_ensemble import Repulsion, disagreement
from imitate.functional.particles import PENALTY
from tests.algo.conftest import gradients, make_algo
from tests.tiny import tiny_algo

PAIR = {"members": 2}


def set_members(algo, *slopes):
    """Let the outputs of member e be ``slopes[e] * s`` before the tanh or softmax."""
    head = algo.nets["policy"].head
    head.weight.data = torch.tensor(slopes).reshape(head.weight.shape)
    head.bias.data.zero_()


def batch_of(states, actions, weight=None):
    obs = {"s": torch.tensor(states)[:, None]}
    return {"obs": obs, "goal_obs": None, "actions": torch.tensor(actions), "weight": weight}


def test_uncertainty_of_numbers_and_of_choices():
    # variances 1 and 4 of two numbers
    numbers = torch.tensor([[[0.0, -2.0]], [[2.0, 2.0]]])
    assert disagreement(numbers, numbers.mean(0), of_choices=False).item() == pytest.approx(
        math.sqrt(2.5)
    )
    # both unsure: no disagreement; sure of different choices: the whole entropy of a fair coin
    unsure, opposed = torch.full((2, 1, 2), 0.5), torch.eye(2)[:, None]
    choices = torch.cat([unsure, opposed], 1)
    both = disagreement(choices, choices.mean(0), of_choices=True)
    assert both.tolist() == pytest.approx([0.0, math.log(2.0)])


def test_the_loss_of_numbers_and_the_mean_action():
    algo = make_algo("bc_ensemble", {**PAIR, "particles": {"rule": "none"}})
    set_members(algo, 0.5, -1.0)
    low, high = math.tanh(0.5), math.tanh(-1.0)
    info = algo.train_on_batch(batch_of([1.0], [[0.25]]), 1, validate=True)
    assert info["Loss"].item() == pytest.approx(((low - 0.25) ** 2 + (high - 0.25) ** 2) / 2)
    assert info["Action_Error"].item() == pytest.approx(abs((low + high) / 2 - 0.25))
    algo.set_eval()
    step = algo.act({"s": torch.ones(1, 1)}, algo.initial_state(1))
    assert step.action.item() == pytest.approx((low + high) / 2)
    assert step.extras["uncertainty"].item() == pytest.approx((low - high) / 2)
    seen = {
        round(
            algo.act({"s": torch.ones(1, 1)}, algo.initial_state(1), explore=True).action.item(), 4
        )
        for _ in range(20)
    }
    assert seen == {round(low, 4), round(high, 4)}


def test_each_member_descends_on_its_own_loss():
    """Losses (o - 0.25)^2 of o = tanh(slope): 2 (o - 0.25)(1 - o^2), not divided by the number of members."""
    algo = make_algo("bc_ensemble", {**PAIR, "particles": {"rule": "none"}})
    set_members(algo, 0.5, -1.0)
    gradients(algo, batch_of([1.0], [[0.25]]))
    outputs = math.tanh(0.5), math.tanh(-1.0)
    wanted = [2 * (o - 0.25) * (1 - o * o) for o in outputs]
    assert algo.nets["policy"].head.weight.grad.flatten().tolist() == pytest.approx(wanted)


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_members_are_compared_beside_the_data_where_they_are_repelled_there(share):
    particles = {"rule": "svgd", "extra_share": share, "extra_noise": 0.0}
    algo = make_algo("bc_ensemble", {**PAIR, "particles": particles})
    set_members(algo, 0.5, -0.5)
    algo.set_train()
    info = algo.train_on_batch(batch_of([1.0, 1.0], [[0.0], [0.0]]), 1)
    assert info["Disagreement"].item() == pytest.approx(math.tanh(0.5))
    assert ("Disagreement_Outside" in info) == (share > 0)


def test_choices():
    section = {**PAIR, "num_choices": 2, "particles": {"rule": "none"}}
    algo = make_algo("bc_ensemble", section, action=2)
    set_members(
        algo, [math.log(3.0), 0.0], [0.0, 0.0]
    )  # probabilities 3/4, 1/4 and 1/2, 1/2 at s = 1
    info = algo.train_on_batch(batch_of([1.0], [[0.0, 1.0]]), 1, validate=True)
    assert info["Loss"].item() == pytest.approx((math.log(4.0) + math.log(2.0)) / 2)
    algo.set_eval()
    step = algo.act({"s": torch.ones(1, 1)}, algo.initial_state(1))
    assert step.action.tolist() == [[1.0, 0.0]]
    mean = -(5 / 8 * math.log(5 / 8) + 3 / 8 * math.log(3 / 8))
    own = (2 * math.log(2) - 0.75 * math.log(3) + math.log(2)) / 2
    assert step.extras["entropy"].item() == pytest.approx(mean)
    assert step.extras["uncertainty"].item() == pytest.approx(mean - own, abs=1e-6)
    explored = algo.act({"s": torch.ones(40, 1)}, algo.initial_state(40), explore=True).action
    assert set(map(tuple, explored.tolist())) == {(1.0, 0.0), (0.0, 1.0)}


@pytest.mark.parametrize("rule, factor", [("svgd", 0.5), ("gfsf", 1.0 / 0.5001)])
def test_outputs_are_moved_by_the_directions_of_the_rule(rule, factor):
    particles = {"rule": rule, "weight": 0.3, "extra_share": 0.0}
    algo = make_algo("bc_ensemble", {**PAIR, "particles": particles})
    set_members(algo, 0.5, -0.5)
    high = math.tanh(0.5)
    loss, _ = algo._loss(batch_of([1.0], [[0.0]]))
    loss.backward()
    # two particles at +-high: k = 1/2, r = +-log 2 / (2 high), gradients of the losses 2 o
    pushed = 0.3 * factor * math.log(2.0) / (2.0 * high)
    own = 2.0 * high
    if rule == "svgd":
        own = (own - 0.5 * own) / 2.0
    through_tanh = 1.0 - high**2
    expected = [(own - pushed) * through_tanh, -(own - pushed) * through_tanh]
    assert algo.nets["policy"].head.weight.grad.flatten().tolist() == pytest.approx(
        expected, abs=1e-5
    )


def test_weights_are_moved_by_the_directions_of_the_rule():
    particles = {"rule": "gfsf", "of": "weights", "weight": 0.3}
    algo = make_algo("bc_ensemble", {**PAIR, "particles": particles})
    set_members(algo, 0.5, -0.5)
    loss, _ = algo._loss(
        batch_of([0.0], [[0.0]])
    )  # no loss and no gradient of the weights at s = 0
    loss.backward()
    # particles (slope, offset) = (+-1/2, 0) at the distance 1: r = +-log 2, as above
    pushed = 0.3 / 0.5001 * math.log(2.0)
    assert algo.nets["policy"].head.weight.grad.flatten().tolist() == pytest.approx(
        [-pushed, pushed], abs=1e-5
    )


class Scaled(torch.nn.Module):
    """An encoder with one weight, by which it multiplies the state."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, obs, goal):
        return self.scale * obs["s"]


def test_the_shared_encoder_descends_on_the_losses_where_rules_move_weights():
    particles = {"rule": "gfsf", "of": "weights", "weight": 0.3}
    algo = make_algo("bc_ensemble", {**PAIR, "particles": particles})
    set_members(algo, 0.5, -0.25)
    encoder = algo.nets["policy"].encoder = Scaled()
    gradients(algo, batch_of([1.0], [[0.0]]))
    # losses o^2 of o = tanh(slope * scale * s): 2 o (1 - o^2) slope
    each = [2 * math.tanh(x) * (1 - math.tanh(x) ** 2) * x for x in (0.5, -0.25)]
    assert encoder.scale.grad.item() == pytest.approx(sum(each), rel=1e-5)


def test_outputs_are_moved_by_the_function_of_minmax_which_learns_to_descend():
    particles = {"rule": "minmax", "weight": 0.3, "extra_share": 0.0, "critic_layer_dims": []}
    algo = make_algo("bc_ensemble", {**PAIR, "particles": {**particles, "critic_steps": 1}})
    set_members(algo, 0.5, 0.5)
    last, action = algo.nets["repulsion"].last, math.tanh(0.5)
    last.weight.data, last.bias.data = torch.tensor([[0.0, 0.01]]), torch.zeros(1)
    loss, info = algo._loss(batch_of([1.0, 1.0], [[0.0], [0.0]]))
    # in both rows f = 0.01 o, gradient of the loss 2 o: 0.3 * 0.01 - 2 o f - 10 f^2
    stein = 0.003 - 0.02 * action**2 - PENALTY * 1e-4 * action**2
    assert info["Stein_Discrepancy"].item() == pytest.approx(stein, rel=1e-4)
    assert last.bias.item() < 0  # a step of the function is against the gradient
    loss.backward()  # members move by f, so that their gradient is -f
    moved = last.weight[0, 1].item() * action + last.weight[0, 0].item() + last.bias.item()
    wanted = -moved * (1.0 - action**2)
    assert algo.nets["policy"].head.weight.grad.flatten().tolist() == pytest.approx([wanted] * 2)


def test_noise_is_relative_to_the_batch_and_leaves_constants():
    algo = tiny_algo(
        "bc_ensemble",
        obs={"s": 2},
        algo={"particles": {"extra_share": 0.5, "extra_noise": 0.25}},
    )
    features = torch.tensor([[-3.0, 1.0], [3.0, 1.0]])  # deviations 3 and 0, of half of the rows
    torch.manual_seed(0)
    found = algo.noisy(features)
    torch.manual_seed(0)
    drawn = torch.randn(1, 2)
    torch.testing.assert_close(found, torch.tensor([[-3.0 + 0.75 * drawn[0, 0], 1.0]]))


def test_the_function_of_minmax_sees_features_and_outputs():
    """tanh of 2 s_1 - s_2 + 3 o, in a layer of one unit, times 0.5."""
    repulsion = Repulsion(2, 1, (1,))
    weights = {"mlp": [[2.0, -1.0, 3.0]], "last": [[0.5]]}
    for name, weight in weights.items():
        linear = next(m for m in getattr(repulsion, name).modules() if hasattr(m, "weight"))
        linear.weight.data.copy_(torch.tensor(weight))
        linear.bias.data.zero_()
    found = repulsion(torch.tensor([[0.5, 0.25]]), torch.tensor([[[0.0]], [[1.0]]]))
    wanted = [0.5 * math.tanh(0.75), 0.5 * math.tanh(3.75)]
    assert found.flatten().tolist() == pytest.approx(wanted)


def test_weighted_rows():
    algo = make_algo("bc_ensemble", {**PAIR, "particles": {"rule": "none"}})
    set_members(algo, 0.0, 0.0)
    batch = batch_of([1.0, 1.0], [[0.5], [1.0]], torch.tensor([3.0, 1.0]))
    info = algo.train_on_batch(batch, 1, validate=True)
    assert info["Loss"].item() == pytest.approx((3 * 0.25 + 1.0) / 4)


def generated(section, **more):
    """An algorithm whose members' weights are made from noise."""
    hypernetwork = {"enabled": True, **section.pop("hypernetwork")}
    return make_algo("bc_ensemble", {**section, "hypernetwork": hypernetwork}, **more)


def test_generated_weights_are_moved_by_gpvi():
    particles = {"rule": "gpvi", "of": "weights", "weight": 3.0}
    hypernetwork = {"noise_dim": 1, "layer_dims": [], "link": 0.5}
    algo = generated({**PAIR, "particles": particles, "hypernetwork": hypernetwork})
    generator = algo.nets["policy"].generator
    generator.last.weight.data = torch.tensor([[1.0], [0.0]])
    generator.last.bias.data.zero_()
    generator.draw = lambda count: torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    # slope 1.5 z_1, offset z_2 / 2 = 0: no gradient at s = 0; repulsion of the noise values 1 and 3 over the slope 1.5
    loss, _ = algo._loss(batch_of([0.0], [[0.0]]))
    loss.backward()
    pushed = 3.0 * math.log(2.0) / 2.0 / 1.5 / 1.01  # damped
    wanted = pytest.approx([pushed * (1.0 - 3.0), 0.0], abs=1e-5)
    assert generator.last.weight.grad.flatten().tolist() == wanted


def test_each_update_draws_members_and_the_same_ones_act():
    algo = generated({**PAIR, "hypernetwork": {"noise_dim": 2}})
    features = torch.ones(1, 1)
    policy = algo.nets["policy"]
    first, second = (policy.members(features, policy.drawn()) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(policy.members(features), policy.members(features))
    other = generated({**PAIR, "hypernetwork": {"noise_dim": 2}}, seed=1)
    other.deserialize(algo.serialize())
    assert torch.equal(other.nets["policy"].members(features), policy.members(features))


def moons(count, generator):
    """Points (N, 2) on two half circles that reach into each other, with their half one-hot."""
    half = torch.randint(2, (count,), generator=generator)
    angle = math.pi * torch.rand(count, generator=generator)
    upper = torch.stack([angle.cos(), angle.sin()], 1)
    points = torch.where(half[:, None] > 0, torch.tensor([1.0, 0.5]) - upper, upper)
    noise = 0.1 * torch.randn(count, 2, generator=generator)
    return points + noise, torch.nn.functional.one_hot(half, 2).float()


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.nightly) for n in (1, 2))])
def test_generated_members_know_two_moons_and_that_they_know_nothing_else(seed):
    repulsion = {"rule": "gfsf", "weight": 0.3, "extra_share": 1.0, "extra_noise": 3.0}
    section = {"num_choices": 2, "members": 10, "hypernetwork": {"noise_dim": 32}}
    section["optim_params"] = {"policy": {"learning_rate": {"initial": 3e-3}}}
    more = {"state": 2, "action": 2, "hidden": (32, 32)}
    algo = generated({**section, "particles": repulsion}, seed=seed, **more)
    generator = torch.Generator().manual_seed(seed)
    seen, half = moons(200, generator)
    far = 4.0 * torch.randn(300, 2, generator=generator)
    far = far[torch.cdist(far, seen).min(1).values > 2.0]

    def learned():
        algo.set_eval()
        known, unknown = (
            algo.act({"s": points}, algo.initial_state(len(points))) for points in (seen, far)
        )
        algo.set_train()
        accuracy = (known.action * half).sum(1).mean()
        doubts = [step.extras["uncertainty"] for step in (known, unknown)]
        return accuracy > 0.95 and (doubts[1][:, None] > doubts[0]).float().mean() > 0.95

    for step in range(1, 801):
        points, wanted = moons(64, generator)
        batch = {"obs": {"s": points}, "goal_obs": None, "weight": None, "actions": wanted}
        algo.train_on_batch(batch, 1)
        if step % 50 == 0 and learned():
            return
    raise AssertionError("neither accurate nor unsure elsewhere after 800 updates")


@pytest.mark.parametrize("rule", ["svgd", pytest.param("gfsf", marks=pytest.mark.nightly)])
def test_members_agree_on_data_and_disagree_in_gaps(rule):
    section = {"particles": {"rule": rule, "weight": 0.003}}
    section["optim_params"] = {"policy": {"learning_rate": {"initial": 5e-3}}}
    algo = make_algo("bc_ensemble", section, hidden=(32, 32))
    algo.set_train()
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        states = torch.rand(64, generator=generator) * 2.0 + 1.0
        states[::2] *= -1.0
        batch = {"obs": {"s": states[:, None]}, "goal_obs": None, "weight": None}
        algo.train_on_batch({**batch, "actions": 0.5 * states[:, None].sin()}, 1)
    algo.set_eval()
    asked = torch.tensor([[-2.0], [2.0], [0.0], [5.0]])
    step = algo.act({"s": asked}, algo.initial_state(4))
    error = (step.action[:2] - 0.5 * asked[:2].sin()).abs().max()
    known, gap, outside = step.extras["uncertainty"].tensor_split([2, 3])
    assert error < 0.1
    # independent members reach a ratio of 5 in a gap too, but with 0.1 at most
    assert gap > max(0.15, 5.0 * known.max()) and outside > max(0.25, 5.0 * known.max())
