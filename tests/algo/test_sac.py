"""SAC on worlds worked out by hand, with a policy that has all but no noise where numbers are literal."""

import math

import pytest
import torch

NOISELESS = {"actor": {"net": {"gaussian": {"min_std": 1e-6, "max_std": 1e-6}}}}


@pytest.fixture
def sac(worlds):
    def make(**section):
        return worlds.make_algo("sac", {**NOISELESS, **section})

    return make


def density(mean, std=1e-6):
    """Expected log-density of a tanh-Gaussian sample with a small std."""
    return -math.log(std * math.sqrt(2 * math.pi * math.e)) - math.log(1 - math.tanh(mean) ** 2)


def test_the_target_takes_the_least_target_critic_and_the_entropy_but_not_after_an_end(sac, worlds):
    algo = sac(temperature={"initial": 0.5})
    worlds.set_actor(algo.actor, slope=0.1)
    worlds.set_critic(algo.nets["critic"], (100, 100), (100, 100))
    worlds.set_critic(algo.nets["critic_target"], (1, 2), (2, 0))
    goes_on, ends = (worlds.only(worlds.two_transitions(), row, 500) for row in (0, 1))
    # Next state 4: mean 0.4, values 4 + 2 tanh 0.4 and 8, the least of them with half the entropy.
    soft = 4 + 2 * math.tanh(0.4) - 0.5 * density(0.4)
    assert worlds.losses(algo, goes_on)["Q_Targets"] == pytest.approx(1.0 + 0.5 * soft, abs=0.02)
    assert worlds.losses(algo, ends)["Q_Targets"] == 0.5


def test_critics_learn_the_target_of_the_data_s_action(sac, worlds):
    algo = sac()
    worlds.set_critic(algo.nets["critic"], (1, 1), (0, 2))
    batch = worlds.two_transitions(discounts=torch.zeros(2))
    info = worlds.losses(algo, batch)
    # Values 2, 1 and 2, -2; targets 1, 0.5.
    assert info["Critic_Loss"] == pytest.approx((1 + 0.25) / 2 + (1 + 6.25) / 2)
    assert info["Q_Targets"] == 0.75
    assert info["Q"] == 0.75  # (2 + 1 + 2 - 2) / 4


def test_the_actor_climbs_the_least_critic_and_leaves_the_critics_alone(sac, worlds):
    algo = sac(temperature={"initial": 1e-9, "tuned": False})
    worlds.set_actor(algo.actor, slope=0.0)
    worlds.set_critic(algo.nets["critic"], (0, 3, 0), (0, 5, 1))
    info = worlds.gradients(algo, worlds.two_transitions())
    assert info["Actor_Loss"] == pytest.approx(0.0, abs=1e-3)
    assert algo.actor.head.mean.bias.grad.item() == pytest.approx(-3.0, abs=1e-2)


def test_the_actor_s_step_leaves_no_gradient_in_the_critics(sac, worlds):
    algo = sac(optim_params={"critic": {"start_epoch": 2}})
    worlds.gradients(algo, worlds.two_transitions())
    assert all(p.grad is not None for p in algo.actor.parameters())
    assert all(p.grad is None for p in algo.nets["critic"].parameters())
    assert not any(p.requires_grad for p in algo.nets["critic_target"].parameters())


@pytest.mark.parametrize(("above", "falls"), [(5.0, True), (-5.0, False)])
def test_the_temperature_falls_where_the_entropy_is_above_its_target(sac, worlds, above, falls):
    target = -density(0.0) - above
    algo = sac(temperature={"initial": 0.5, "target_entropy": target})
    worlds.set_actor(algo.actor, slope=0.0)
    algo.train_on_batch(worlds.two_transitions(), 1)
    assert (worlds.losses(algo, worlds.two_transitions())["Temperature"] < 0.5) == falls


@pytest.mark.parametrize(
    ("given", "target"),
    [({}, -3.0), ({"target_entropy": -0.25}, -0.25), ({"target_entropy": 0.0}, 0.0)],
)
def test_the_slope_of_the_temperature_is_the_entropy_above_its_target(worlds, given, target):
    """By default minus the action dimensions. The loss is log(alpha) (entropy - target)."""
    algo = worlds.make_algo("sac", {"temperature": {"initial": 0.5, **given}}, action=3)
    batch = worlds.two_transitions(actions=torch.zeros(2, 3))
    entropy = worlds.gradients(algo, batch)["Entropy"]
    assert algo.nets["temperature"].log.grad.item() == pytest.approx(entropy - target, abs=1e-5)


def test_what_the_actor_s_loss_logs_by_hand(sac, worlds):
    algo = sac(temperature={"initial": 0.5})
    worlds.set_actor(algo.actor, slope=0.0)
    worlds.set_critic(algo.nets["critic"], (3, 0, 0), (4, 0, 1))
    batch = worlds.two_transitions(weight=torch.tensor([2000.0, 0.0]))
    batch |= {
        "obs": {key: x.repeat(1000, 1) for key, x in batch["obs"].items()},
        "weight": batch["weight"].repeat(1000),
    }
    batch |= {"next_obs": batch["obs"], "actions": batch["actions"].repeat(1000, 1)}
    batch |= {key: batch[key].repeat(1000) for key in ("rewards", "discounts")}
    info = worlds.losses(algo, batch)
    # Samples of a std of 1e-6: log-density 12.4 on average. State 1 alone counts, its least value is 3.
    assert info["Entropy"] == pytest.approx(-density(0.0), abs=0.1)
    assert info["Actor_Loss"] == pytest.approx(0.5 * density(0.0) - 3.0, abs=0.05)
    assert info["Temperature"] == pytest.approx(0.5)


def test_a_constant_temperature_is_no_network(sac, worlds):
    algo = sac(temperature={"initial": 0.3, "tuned": False})
    assert "temperature" not in algo.nets
    for _ in range(2):
        algo.train_on_batch(worlds.two_transitions(), 1)
    info = worlds.losses(algo, worlds.two_transitions())
    assert info["Temperature"] == pytest.approx(0.3)


ALL = {"actor", "critic", "critic_target", "temperature"}


def test_an_update_moves_everything_and_a_validation_nothing(sac, worlds):
    assert worlds.moved_by(sac(), worlds.two_transitions()) == ALL
    algo = sac()
    # Apart, so that a target that follows moves.
    algo.nets["critic_target"].head.bias.data += 1.0
    assert worlds.moved_by(algo, worlds.two_transitions(), validate=True) == set()


@pytest.mark.parametrize(
    ("later", "moved"),
    [("actor", {"critic", "critic_target"}), ("critic", {"actor", "temperature"})],
)
def test_the_temperature_learns_with_the_actor_and_targets_follow_with_the_critic(
    sac, worlds, later, moved
):
    algo = sac(optim_params={later: {"start_epoch": 3}})
    assert worlds.moved_by(algo, worlds.two_transitions()) == moved
    assert worlds.moved_by(algo, worlds.two_transitions(), epoch=3) == ALL


def test_the_gradient_of_the_temperature_is_not_clipped(worlds):
    section = {"critic": {"max_gradient_norm": 0.5}, "actor": {"max_gradient_norm": 0.25}}
    algo = worlds.make_algo("sac", section)
    batch = worlds.two_transitions(rewards=torch.full((2,), 100.0))
    info = worlds.gradients(algo, batch)
    norms = {}
    for name in ("critic", "actor", "temperature"):
        gradients = [p.grad.flatten() for p in algo.nets[name].parameters()]
        norms[name] = torch.cat(gradients).norm().item()
    assert info["Critic_Grad_Norms"] > 1.0 and info["Actor_Grad_Norms"] > 0.25
    assert norms["critic"] == pytest.approx(0.5, rel=1e-4)
    assert norms["actor"] == pytest.approx(0.25, rel=1e-4)
    assert norms["temperature"] == pytest.approx(abs(info["Entropy"] + 1.0), rel=1e-4)


def test_targets_follow(sac, worlds):
    algo = sac(target_tau=0.25)
    worlds.set_critic(algo.nets["critic"], (1, 1), (1, 1))
    worlds.set_critic(algo.nets["critic_target"], (0, 0), (0, 0))
    worlds.gradients(algo, worlds.two_transitions())
    assert algo.nets["critic_target"].head.weight.flatten().tolist() == [0.25] * 4
