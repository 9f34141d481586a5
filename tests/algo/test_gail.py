"""GAIL: its rewards for a rollout, by hand."""

import math

import numpy as np
import torch


def test_rewards_are_never_negative_and_a_terminal_adds_those_of_the_absorbing_state(worlds):
    algo = worlds.make_imitator("gail")
    worlds.set_discriminator(algo.reward_source.discriminator, 1.0, (0.0, 0.5), 4.0, bias=-1.0)
    rewards = algo.rollout_rewards(worlds.two_lanes())

    def r(logit):
        return math.log1p(math.exp(logit))

    # States 0 to 5, the second and the third with the second action, minus 1. Discount 0.5: 0.5 / (1 - 0.5) = 1 times
    # the reward of the absorbing state, whose logit is 3, where an episode ends by a terminal.
    expected = [[r(-1), r(0.5)], [r(1.5) + r(3), r(2)], [r(3), r(4)]]
    np.testing.assert_allclose(rewards, expected, rtol=1e-6)


def test_observations_alone_are_an_option(worlds):
    algo = worlds.make_imitator("gail", {"discriminator": {"sees_actions": False}})
    changed = worlds.two_lanes()
    changed["actions"] = 1 - changed["actions"]
    torch.testing.assert_close(
        algo.rollout_rewards(changed), algo.rollout_rewards(worlds.two_lanes()), rtol=0, atol=0
    )


def test_demonstrations_are_wanted_in_the_first_passes(worlds):
    assert worlds.make_imitator("gail", {"discriminator": {"passes": 3}}).expert_passes == 3
    assert worlds.make_imitator("gail").expert_passes == 20
