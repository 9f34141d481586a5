"""FQL: the steps of the flow and each loss by hand, acting with noise, and two modes that one Gaussian merges."""

import pytest
import torch

from tests.algo.conftest import gradients, losses
from tests.tiny import tiny_algo


def make(worlds, **actor):
    """Target critics 10 + a and 20 + a, critics 2 + a and 4 - 3 a, a flow that stays, policy z / 2."""
    section = {"critic": {"layer_norm": False}, "flow": {"num_steps": 2}, "actor": actor}
    algo = worlds.make_algo("fql", section)
    worlds.set_critic(algo.nets["critic_target"], (0, 1, 10), (0, 1, 20))
    worlds.set_critic(algo.nets["critic"], (0, 1, 2), (0, -3, 4))
    worlds.set_net(algo.nets["flow"])
    worlds.set_net(algo.nets["actor"], x=0.5)
    return algo


@pytest.fixture
def algo(worlds):
    return make(worlds)


def seeded_losses(algo, batch):
    """The losses, and what they draw in turn: noise of the target, noise and time of the flow, noise of the policy."""
    torch.manual_seed(0)
    found = losses(algo, batch)
    torch.manual_seed(0)
    like = batch["actions"]
    return (
        found,
        torch.randn_like(like),
        torch.randn_like(like),
        torch.rand_like(like),
        torch.randn_like(like),
    )


@pytest.mark.parametrize(
    ("field", "ends"),
    [
        ({}, [0.2, -1.0]),  # -3 is clipped
        ({"x": 1.0}, [0.2 * 1.5**2, -1.0]),
        ({"time": 1.0}, [0.2 + 0.25, -1.0]),  # times 0 and 1/2
        ({"state": 0.5}, [0.2 + 0.5, -1.0]),
        ({"bias": 2.0}, [1.0, -1.0]),
    ],
)
def test_euler_steps(algo, worlds, field, ends):
    worlds.set_net(algo.nets["flow"], **field)
    made = algo.flow_actions(worlds.two_transitions(), torch.tensor([[0.2], [-3.0]]))
    torch.testing.assert_close(made[:, 0], torch.tensor(ends))


def test_targets_are_means_of_critics_at_clipped_actions_of_the_policy(algo, worlds):
    worlds.set_net(algo.nets["actor"], state=5.0)  # 20 in the next state
    # targets 1 + 0.5 * mean(11, 21) and 0.5; critics 3 and 1 of action 1, 1 and 7 of -1
    errors = (3 - 9) ** 2 + (1 - 9) ** 2 + (1 - 0.5) ** 2 + (7 - 0.5) ** 2
    assert losses(algo, worlds.two_transitions())["Critic_Loss"] == pytest.approx(errors / 2)


def test_the_flow_learns_the_difference_of_data_and_noise(algo, worlds):
    batch = worlds.two_transitions()
    worlds.set_net(algo.nets["flow"], x=2.0, time=1.0)
    found, _, noise, time, _ = seeded_losses(algo, batch)
    x = (1 - time) * noise + time * batch["actions"]
    wanted = (2 * x + time - (batch["actions"] - noise)).square().mean()
    assert found["Flow_Loss"] == pytest.approx(wanted.item())


@pytest.mark.parametrize("normalize", [False, True])
def test_the_policy_stays_near_the_flow_and_maximizes_the_mean_of_critics(worlds, normalize):
    algo = make(worlds, normalize_q=normalize)
    found, *_, noise = seeded_losses(algo, worlds.two_transitions())
    distance = (0.5 * noise - noise.clamp(-1, 1)).square()
    values = 3.0 - (0.5 * noise).clamp(-1, 1)  # mean of 2 + a and 4 - 3 a
    scale = values.abs().mean() if normalize else 1.0
    wanted = (10.0 * distance - values / scale).mean()
    assert found["Actor_Loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert found["Distillation_Loss"] == pytest.approx(distance.mean().item(), rel=1e-5)


def test_the_error_is_the_distance_from_the_datas_actions(algo, worlds):
    worlds.set_net(algo.nets["actor"], bias=0.25)
    batch = worlds.two_transitions(actions=torch.tensor([[1.0], [0.5]]))
    assert losses(algo, batch)["Action_Error"] == pytest.approx((0.75 + 0.25) / 2)


def test_gradients_of_the_policy(worlds):
    """Without a distance the policy follows dQ/da = 2, with one it is drawn to the flow's 0.5."""
    for weight, expected in ((0.0, -2.0), (10.0, 10.0 * 2 * (0.1 - 0.5) - 2.0)):
        section = {"critic": {"layer_norm": False}, "actor": {"distill_weight": weight}}
        algo = worlds.make_algo("fql", section)
        worlds.set_critic(algo.nets["critic"], (0, 2, 0), (0, 2, 0))
        worlds.set_net(algo.nets["actor"], bias=0.1)
        worlds.set_net(
            algo.nets["flow"], x=-10.0, bias=5.0
        )  # in ten steps of v = 10 (0.5 - x), every noise ends at 0.5
        gradients(algo, worlds.two_transitions())
        assert algo.nets["actor"].last.bias.grad.item() == pytest.approx(expected, rel=1e-4)


def test_it_acts_with_new_noise_within_the_range(algo, worlds):
    obs = {"s": torch.zeros(500, 1)}
    worlds.set_net(algo.nets["actor"], x=2.0)
    algo.set_eval()
    state = algo.initial_state(500)
    first, again = (algo.act(obs, state).action for _ in range(2))
    assert not torch.equal(first, again)
    assert (
        first.abs().max() == 1.0 and 0.2 < (first.abs() < 1).float().mean() < 0.6
    )  # P(|z| < 1/2) = 0.38
    one, same = (
        algo.act(obs, state, generator=torch.Generator().manual_seed(1)).action for _ in range(2)
    )
    assert torch.equal(one, same)


def two_modes(size=256):
    """One step: half of the actions are near 0.7, half near -0.7; both are as good."""
    generator = torch.Generator().manual_seed(0)
    sign = torch.where(torch.arange(size)[:, None] % 2 == 0, 1.0, -1.0)
    return {
        "obs": {"s": torch.ones(size, 1)},
        "next_obs": {"s": torch.ones(size, 1)},
        "goal_obs": None,
        "actions": 0.7 * sign + 0.05 * torch.randn(size, 1, generator=generator),
        "rewards": torch.ones(size),
        "discounts": torch.zeros(size),
        "weight": None,
    }


def shares_near_a_mode(algo):
    """Shares of 400 actions within 0.25 of 0.7, and of -0.7."""
    torch.manual_seed(0)
    algo.set_eval()
    made = algo.act({"s": torch.ones(400, 1)}, algo.initial_state(400), explore=True).action
    algo.set_train()
    return [((made - mode).abs() < 0.25).float().mean().item() for mode in (0.7, -0.7)]


@pytest.mark.slow("two algorithms learn until one of them has both modes")
def test_two_modes_that_a_gaussian_merges(worlds):
    rates = [f"algo.optim_params.{x}.learning_rate.initial=0.01" for x in ("critic", "actor")]
    train = {"num_epochs": 10, "obs_normalization": None}
    words = {"obs": {"s": 1}, "hidden": [32, 32], "train": train}
    fql = tiny_algo("fql", *rates, "algo.optim_params.flow.learning_rate.initial=0.01", **words)

    def learned():
        shares = shares_near_a_mode(fql)
        return sum(shares) > 0.8 and min(shares) > 0.2

    assert worlds.learns(fql, two_modes(128), 600, learned)
    iql = tiny_algo("iql", *rates, **words)
    worlds.learn(iql, two_modes(128), 100)
    assert sum(shares_near_a_mode(iql)) < 0.6
