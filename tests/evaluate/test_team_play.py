"""An episode of several agents by hand."""

import numpy as np
import pytest

from imitate.evaluate.episodes import play_team
from tests.train.online.test_teams import Walkers


class Ahead:
    """A policy that walks one unit per step."""

    goal_keys = ()

    def __init__(self):
        self.rewards = []

    def __call__(self, obs, batched_ob):
        return np.ones((len(obs["place"]), 1))

    def observe(self, rewards):
        self.rewards.append(rewards.tolist())


def play(horizon, terminate_on_success=False, agents=2):
    env, policy, shown = Walkers(agents), Ahead(), []
    first, _ = env.reset()
    played = play_team(
        policy,
        env,
        first,
        horizon=horizon,
        terminate_on_success=terminate_on_success,
        show=shown.append,
    )
    return played, policy, shown


def test_an_agent_that_has_left_earns_nothing_more():
    played, policy, shown = play(10)
    assert policy.rewards == [[1.0, 11.0], [2.0, 12.0], [0.0, 13.0]]
    assert [agent.total for agent in played.agents.values()] == [3.0, 36.0]
    assert shown == [0, 1, 2]
    assert (played.length, played.over) == (3, True)
    assert [obs["place"].item() for obs in played.last] == [2.0, 3.0]


@pytest.mark.parametrize(("horizon", "successes"), [(2, [True, False]), (3, [True, True])])
def test_the_horizon_ends_it(horizon, successes):
    played, _, _ = play(horizon)
    assert played.length == horizon
    assert [agent.success for agent in played.agents.values()] == successes
    assert played.over == (horizon == 3)
