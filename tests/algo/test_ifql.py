"""IFQL: each loss by hand, the choice among the flow's actions, and two modes of which one is better."""

import pytest
import torch


@pytest.fixture
def algo(worlds):
    """Critics s + a and 2 a, targets 10 + a and 20 + 3 a, V = s, a flow that stays."""
    algo = worlds.make_algo("ifql", {"critic": {"layer_norm": False}, "vf_quantile": 0.8})
    worlds.set_critic(algo.nets["critic"], (1, 1), (0, 2))
    worlds.set_critic(algo.nets["critic_target"], (0, 1, 10), (0, 3, 20))
    worlds.set_critic(algo.nets["vf"], (1,))
    worlds.set_net(algo.nets["flow"])
    return algo


def test_losses(algo, worlds):
    batch = worlds.two_transitions()
    worlds.set_net(algo.nets["flow"], x=2.0, time=1.0)
    torch.manual_seed(0)
    noise, time = torch.randn(2, 1), torch.rand(2, 1)
    torch.manual_seed(0)
    found = worlds.losses(algo, batch)
    # critics' targets are 1 + 0.5 V(4) = 3 and 0.5; critics 2 and 2 of action 1, 1 and -2 of action -1
    errors = (2 - 3) ** 2 * 2 + (1 - 0.5) ** 2 + (-2 - 0.5) ** 2
    assert found["Critic_Loss"] == pytest.approx(errors / 2)
    # V is 1 and 2, its targets min(11, 23) and min(9, 17)
    assert found["Vf_Loss"] == pytest.approx(0.8 * (10**2 + 7**2) / 2)
    x = (1 - time) * noise + time * batch["actions"]
    wanted = (2 * x + time - (batch["actions"] - noise)).square().mean()
    assert found["Flow_Loss"] == pytest.approx(wanted.item(), rel=1e-5)


def test_the_error_is_the_distance_from_the_datas_actions(algo, worlds):
    worlds.set_net(algo.nets["flow"], x=-10.0, bias=2.5)  # in ten steps every noise ends at 0.25
    batch = worlds.two_transitions(actions=torch.tensor([[1.0], [0.5]]))
    found = worlds.losses(algo, batch)["Action_Error"]
    assert found == pytest.approx((0.75 + 0.25) / 2, rel=1e-4)


def test_values_above_the_actions_weigh_less(algo, worlds):
    worlds.set_critic(algo.nets["vf"], (10, 2))  # 12 and 22
    found = worlds.losses(algo, worlds.two_transitions())
    assert found["Vf_Loss"] == pytest.approx(0.2 * (1 + 13**2) / 2)


def test_each_loss_trains_its_network_and_sees_the_values_before_the_step(algo, worlds):
    worlds.gradients(algo, worlds.two_transitions())
    # d/dw of the errors of Q_0: 2 (2 - 3) 1 and 2 (1 - 0.5) 2, halved
    assert algo.nets["critic"].head.weight.grad[0, 0].item() == pytest.approx((-2 + 2) / 2)
    assert algo.nets["critic"].head.bias.grad[1].item() == pytest.approx((-2 - 5) / 2)
    slope = algo.nets["vf"].head.bias.grad.item()
    assert slope == pytest.approx(-0.8 * 2 * (10 + 7) / 2)


def test_the_policy_takes_the_action_with_the_largest_least_value(algo):
    obs = {"s": torch.tensor([[0.5], [-1.0]])}
    made = algo.best_actions(obs, None, torch.Generator().manual_seed(0))
    noise = torch.randn(2, 4, 1, generator=torch.Generator().manual_seed(0)).clamp(-1, 1)
    least = torch.minimum(obs["s"] + noise[..., 0], 2 * noise[..., 0])
    torch.testing.assert_close(made, noise[torch.arange(2), least.argmax(1)])


def test_it_takes_the_better_of_two_modes(worlds):
    algo = worlds.make_algo("ifql", {"flow": {"num_candidates": 32}}, hidden=(32,))
    for optimizer in algo.optimizers.values():
        optimizer.param_groups[0]["lr"] = 1e-2

    def learned():
        made = algo.best_actions({"s": torch.ones(50, 1)}, None)
        return made.mean() > 0.4  # of the data's actions it is -0.3

    assert worlds.learns(algo, worlds.bandit(), 200, learned)
