"""A search whose model is the environment: one step by hand, a cost that pays later, and a simulator's states."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from imitate.envs import make_env
from imitate.envs.gymnasium_env import GymnasiumEnv
from imitate.errors import EnvError
from imitate.functional.search import EnvTree


class Corridor(gymnasium.Env):
    """Cells from 0 on: a step to the right costs 1, but the second one gives 10 and ends; to the left there is 0.1."""

    observation_space = spaces.Box(0.0, 2.0, (1,))
    action_space = spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        self.place = 0.0
        return self._obs(), {}

    def step(self, action):
        right = action[0] > 0
        self.place = self.place + 1 if right else 0.0
        there = self.place == 2
        return self._obs(), (10.0 if there else -1.0) if right else 0.1, there, False, {}

    def _obs(self):
        return np.array([self.place], np.float32)

    def get_sim_state(self):
        return np.array([self.place])

    def set_sim_state(self, state):
        self.place = float(state[0])
        return self._obs()


LEFT_RIGHT = np.array([[-1.0], [1.0]])


def corridor(**words):
    name = "tests/SearchedCorridor-v0"
    gymnasium.register(name, Corridor)
    env = GymnasiumEnv(name)
    del gymnasium.registry[name]
    env.reset(seed=0)
    return EnvTree(env, LEFT_RIGHT, **words)


def test_edges_by_hand():
    """To the right, and to the end; then from node 1 to the left."""
    tree = corridor(discount=0.5, value=lambda obs: 7 * obs["flat"][0])
    tree.states = [tree.env.get_state()]
    edges = [(0, 1), (1, 1), (1, 0)]
    found = [tree(k + 1, np.array([a]), np.array([c])) for k, (a, c) in enumerate(edges)]
    numbers = [(*leaf.rewards, *leaf.discounts, *leaf.values) for leaf in found]
    np.testing.assert_allclose(numbers, [(-1, 0.5, 7), (10, 0, 14), (0.1, 0.5, 0)])
    assert found[0].priors.tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(("simulations", "best"), [(2, 0), (60, 1)])
def test_a_search_pays_for_a_later_reward_and_leaves_the_environment_where_it_was(
    simulations, best
):
    tree = corridor(discount=0.9)
    found = tree.search(simulations)
    assert found.q.argmax() == best and found.visits.sum() == simulations
    assert tree.env.get_state()["states"].tolist() == [0.0]


def test_a_pole_in_a_simulator_is_kept_upright():
    env = make_env({"env_name": "InvertedPendulum-v5", "type": 2, "env_kwargs": {}})
    env.reset(seed=0)

    def upright(obs):
        return -20 * abs(obs["flat"][1]) - 2 * abs(obs["flat"][3]) - abs(obs["flat"][0])

    tree = EnvTree(env, np.array([[-1.0], [0.0], [1.0]]), value=upright)
    for _ in range(60):
        before = env.get_state()["states"]
        choice = tree.search(12).visits.argmax()
        np.testing.assert_array_equal(env.get_state()["states"][1:], before[1:])
        assert not env.step(tree.actions[choice])[2]
    env.close()


def test_an_environment_without_states_is_refused():
    env = make_env({"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}})
    env.reset(seed=0)
    with pytest.raises(EnvError, match="neither read nor set"):
        EnvTree(env, np.eye(2)).search(3)
