"""Reward sources in algorithms other than those that they are registered for."""

from typing import ClassVar

import pytest
import torch
from pydantic import Field

from imitate.algo.airl import AIRLRewards
from imitate.algo.base.adversarial import (
    AdversarialConfig,
    DiscriminatorConfig,
    RolloutDiscriminatorConfig,
)
from imitate.algo.base.factory import register_learner
from imitate.algo.dac import DACConfig, DACRewards
from imitate.algo.gail import GAILRewards
from imitate.algo.slots.reward_source import RewardSource
from imitate.config import algorithms
from tests.tiny import tiny_algo


class ReplayedGAIL(DACConfig):
    """SAC with GAIL's rewards."""

    reward_source: ClassVar[type[RewardSource]] = GAILRewards
    discriminator: DiscriminatorConfig = Field(DiscriminatorConfig())


class ReplayedAIRL(ReplayedGAIL):
    """SAC with AIRL's rewards."""

    reward_source: ClassVar[type[RewardSource]] = AIRLRewards


class DACOfRollouts(AdversarialConfig):
    """PPO with DAC's rewards."""

    reward_source: ClassVar[type[RewardSource] | None] = DACRewards
    discriminator: RolloutDiscriminatorConfig = Field(RolloutDiscriminatorConfig(passes=2))


class ScaledRewards(RewardSource):
    """Three times the first number of the state; nothing is learned."""

    def rewards(self, batch):
        return 3.0 * batch["obs"]["x"][:, 0]


class Scaled(AdversarialConfig):
    """PPO with rewards of a formula."""

    reward_source: ClassVar[type[RewardSource] | None] = ScaledRewards


@pytest.fixture
def sources():
    known = algorithms.available()
    for name, section, learner in (
        ("replayed_gail", ReplayedGAIL, "sac"),
        ("replayed_airl", ReplayedAIRL, "sac"),
        ("dac_of_rollouts", DACOfRollouts, "ppo"),
        ("scaled", Scaled, "ppo"),
    ):
        if name not in known:
            register_learner(name, learner=learner)(section)


def make_sac(name):
    section = {"discount": 0.9, "discriminator": {"layer_dims": [], "gradient_penalty": 0.0}}
    return tiny_algo(name, obs={"x": 1}, hidden=[8], algo=section)


def replayed():
    """States 1 to 4, actions 0.5; the second and the fourth end. The first two are from the replay buffer."""
    x = torch.arange(1.0, 5.0).view(4, 1, 1)
    return {
        "obs": {"x": x},
        "next_obs": {"x": x + 1.0},
        "actions": torch.full((4, 1, 1), 0.5),
        "rewards": torch.full((4, 1), -7.0),
        "n_step_rewards": torch.full((4,), -7.0),
        "discounts": torch.tensor([0.9, 0.0, 0.9, 0.0]),
        "part": torch.tensor([0, 0, 1, 1]),
    }


def test_sac_learns_from_the_rewards_of_gail(sources, worlds):
    algo = make_sac("replayed_gail")
    worlds.set_discriminator(algo.reward_source.discriminator, 1.0, (2.0,), -0.5, bias=0.1)
    batch = algo.process_batch_for_training(replayed())
    softplus = torch.nn.functional.softplus
    # Logits: the state plus 2 x 0.5 plus 0.1; of the absorbing state -0.4, 0.9 / 0.1 = 9 times.
    wanted = softplus(torch.tensor([2.1, 3.1, 4.1, 5.1]))
    wanted[[1, 3]] += 9 * softplus(torch.tensor(-0.4))
    torch.testing.assert_close(algo.reward_source.rewards(batch), wanted)
    info = algo.train_on_batch(batch, 1, validate=True)
    assert info["Reward"].item() == pytest.approx(wanted.mean().item())


def test_sac_learns_from_the_rewards_of_airl_against_its_own_density(sources, worlds):
    algo = make_sac("replayed_airl")
    worlds.set_discriminator(algo.reward_source.discriminator, 1.0, (0.0,), 2.0)
    worlds.set_discriminator(algo.reward_source.potential, 10.0, (), 3.0)
    batch = algo.process_batch_for_training(replayed())
    features, _ = algo.actor(batch["obs"], None)
    log_prob = algo.actor.head(features).log_prob(batch["actions"]).detach()
    # g = x, h = 10 x, after a terminal 3; there the absorbing state's 2 + 0.9 x 3 - 3 counts 9 times more.
    shaped = [1 + 18 - 10, 2 + 2.7 - 20, 3 + 36 - 30, 4 + 2.7 - 40]
    wanted = torch.tensor(shaped) - log_prob + torch.tensor([0.0, 1.0, 0.0, 1.0]) * 9 * 1.7
    info = algo.train_on_batch(batch, 1, validate=True)
    assert info["Reward"].item() == pytest.approx(wanted.mean().item(), rel=1e-5)
    before = [p.detach().clone() for p in algo.nets["discriminator"].parameters()]
    algo.train_on_batch(batch, 1)
    after = algo.nets["discriminator"].parameters()
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_ppo_learns_from_the_rewards_of_dac(sources, worlds):
    algo = worlds.make_imitator("dac_of_rollouts")
    assert algo.expert_passes == 2
    worlds.set_discriminator(algo.reward_source.discriminator, 1.0, (0.0, 0.0), -4.0, bias=-1.0)
    rewards = algo.rollout_rewards(worlds.two_lanes())
    # Logits x - 1, of the absorbing state -5, which counts once with discount 0.5.
    assert rewards.tolist() == [[-1, 0], [1 - 5, 2], [3, 4]]


def test_a_formula_is_a_source_without_a_network_and_without_demonstrations(sources, worlds):
    algo = worlds.make_imitator("scaled")
    assert algo.rollout_rewards(worlds.two_lanes()).tolist() == [[0, 3], [6, 9], [12, 15]]
    assert algo.expert_passes == 0 and set(algo.nets) == {"policy"}
