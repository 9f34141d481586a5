"""OAC's shift of the mean and SARSA's targets, by hand."""

import pytest
import torch

from imitate.algo.slots.exploration import ActionNoise, ActionNoiseConfig, optimistic
from imitate.errors import ConfigError
from imitate.models.heads import Gaussian
from tests.tiny import tiny_config


def test_each_state_is_shifted_by_its_own_slope():
    policy = Gaussian(torch.zeros(3, 2), torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 2.0]]))
    slopes = torch.tensor([[3.0, 4.0], [0.0, 100.0], [4.0, 1.5]])
    found = optimistic(policy, lambda actions: (slopes * actions).sum(-1), 5.0)
    # Unit vectors 0.6, 0.8 and 0, 1; of slopes 4 and 2 * 1.5 again 0.8, 0.6, the second times its deviation.
    wanted = [[3.0, 4.0], [0.0, 5.0], [4.0, 6.0]]
    torch.testing.assert_close(found.mean, torch.tensor(wanted))
    assert found.stds is policy.stds and not found.mean.requires_grad
    still = optimistic(policy, lambda actions: 0.0 * actions.sum(-1), 5.0)
    assert still.mean.tolist() == [[0.0, 0.0]] * 3


def optimist(worlds, beta, **section):
    small = {"gaussian": {"min_std": 1e-2, "max_std": 1e-2}}
    optimism = {"shift": 20.0, "beta": beta}
    algo = worlds.make_algo("sac", {"actor": {"net": small}, "optimism": optimism, **section})
    worlds.set_actor(algo.actor, slope=0.0)
    # Values 3 a and -a - 1: their mean rises by a, half of their difference by 2 a.
    worlds.set_critic(algo.nets["critic"], (0, 3, 0), (0, -1, -1))
    return algo


@pytest.mark.parametrize(("beta", "sign"), [(0.0, 1.0), (4.66, 1.0), (-1.0, -1.0)])
def test_rollouts_climb_the_upper_bound_and_evaluations_do_not(worlds, beta, sign):
    algo = optimist(worlds, beta)
    obs = {"s": torch.ones(200, 1)}
    with torch.inference_mode():  # as in collectors
        step = algo.act(obs, algo.initial_state(200), explore=True)
        still = algo.act(obs, algo.initial_state(200))
    # 20 deviations of 0.01 from the mean 0.
    assert step.action.atanh().mean().item() == pytest.approx(sign * 0.2, abs=0.01)
    assert still.action.abs().max() == 0.0
    assert "critic" in algo.acting_nets


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("algo.rnn.enabled=true", "a policy without memory"),
        ("algo.num_choices=1", "needs continuous actions"),
    ],
)
def test_optimism_is_for_numbers_without_a_memory(change, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config("sac", change, "algo.optimism={}", train={"seq_length": 4})


@pytest.mark.parametrize("name", ["sac", "ddpg"])
def test_sarsa_bootstraps_from_the_action_that_was_taken_next(worlds, name):
    algo = worlds.make_algo(name, {"target": "data", "critic": {"ensemble": {"n": 2}}})
    assert algo.config.data_needs(algo.global_config).transitions.next_actions
    worlds.set_critic(algo.nets["critic_target"], (1, 2), (1, 3))
    batch = worlds.two_transitions(next_actions=torch.tensor([[0.5], [0.0]]))
    # Next state 4, action 0.5: values 5 and 5.5. The second transition ends.
    info = worlds.losses(algo, batch)
    assert info["Q_Targets"] == pytest.approx(((1 + 0.5 * 5) + 0.5) / 2)


def test_sarsa_needs_next_actions(worlds):
    with pytest.raises(ConfigError, match="have no next actions"):
        tiny_config("sac", "algo.target=data", "algo.rnn.enabled=true", train={"seq_length": 4})
    with pytest.raises(ConfigError, match="have no next action: set it to 'policy'"):
        tiny_config("sac", "algo.target=data", "algo.dynamics={}")


def test_a_target_without_the_entropy_and_a_largest_temperature(worlds):
    algo = worlds.make_algo("sac", {"entropy_backup": False, "temperature": {"maximum": 0.5}})
    assert algo.entropy.value.item() == 0.5
    worlds.set_actor(algo.actor, slope=0.0)
    worlds.set_critic(algo.nets["critic_target"], (1, 0), (2, 0))
    batch = worlds.only(worlds.two_transitions(), 0)
    assert worlds.losses(algo, batch)["Q_Targets"] == pytest.approx(1 + 0.5 * 4)


def test_large_actions_and_slopes_of_ddpg_are_limited(worlds):
    section = {"action_l2": 0.5, "gradient_clip": 2.0}
    algo = worlds.make_algo("ddpg", section)
    worlds.set_actor(algo.actor, slope=0.0, offset=0.5)
    worlds.set_critic(algo.nets["critic"], (0, 10))
    info = worlds.gradients(algo, worlds.two_transitions())
    action = torch.tensor(0.5).tanh().item()
    assert info["Actor_Loss"] == pytest.approx(-10 * action + 0.5 * action**2, rel=1e-5)
    # The slope of the whole loss by an action, -10 + action, is limited to -2.
    assert algo.actor.head.action.bias.grad.item() == pytest.approx(-2 * (1 - action**2), rel=1e-5)


def test_some_actions_of_rollouts_are_random():
    zero, noise = torch.zeros(4000, 1), ActionNoise(ActionNoiseConfig(std=0.0, random_share=0.25))
    torch.manual_seed(0)
    chosen, _ = noise.add_to(zero, noise.initial_state(4000, 1, torch.device("cpu")))
    assert (chosen != 0).float().mean().item() == pytest.approx(0.25, abs=0.03)
    assert chosen.max() > 0.9 and chosen.min() < -0.9
