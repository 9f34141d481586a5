"""Two agents carry a table: rewards, falls and ends by hand."""

import numpy as np
import pytest

from imitate.envs.worlds.team_tasks import PATIENCE, SLIP, STEPS, TOP, Carry

FLOOR = 1 / (2 * TOP)


class Sure(Carry):
    """Nothing slips, or always if ``slips``."""

    def __init__(self, slips=False):
        super().__init__()
        self.slips = slips

    def reset(self, seed=None, options=None):
        found = super().reset(seed, options)
        self._rng = self  # numbers of the test
        return found

    def random(self, count):
        return np.full(count, SLIP - 1e-6 if self.slips else SLIP)


def lift(env, left, right):
    return env.step({"left": left, "right": right})


def test_the_numbers_of_the_task():
    assert (TOP, SLIP, STEPS, PATIENCE) == (8, 0.35, 80, 0.02)
    env = Carry("human")
    assert env.render_mode == "human"
    assert env.observation_space("left")["own"].high == 1.0
    assert env.observation_space("left")["other"].low == 0.0
    assert env.action_space("right").n == 2


def test_each_floor_is_a_sixteenth_and_each_step_costs():
    env = Sure()
    first, infos = env.reset(seed=0)
    assert set(first) == set(infos) == {"left", "right"}
    obs, rewards, ended, cut, infos = lift(env, 1, 0)
    assert obs["left"] == {"own": np.float32(0.125), "other": 0.0}
    assert obs["right"] == {"own": 0.0, "other": np.float32(0.125)}
    assert rewards == dict.fromkeys(["left", "right"], FLOOR - PATIENCE)
    assert not any({**ended, **cut}.values())
    assert infos == {"left": {"success": False}, "right": {"success": False}}
    assert lift(env, 1, 1)[1]["left"] == 2 * FLOOR - PATIENCE
    assert lift(env, 0, 0)[1]["right"] == -PATIENCE


def test_the_table_falls_at_two_floors():
    env = Sure()
    env.reset()
    lift(env, 1, 0)
    _, rewards, ended, cut, infos = lift(env, 1, 0)
    assert rewards == {"left": -1.0, "right": -1.0}
    assert ended == {"left": True, "right": True} and not any(cut.values())
    assert env.agents == [] and not infos["left"]["success"]


def test_an_agent_leaves_at_the_top_and_the_other_goes_on():
    env = Sure()
    env.reset()
    for _ in range(TOP - 1):
        lift(env, 1, 1)
    _, _, ended, _, infos = lift(env, 1, 0)
    assert ended == {"left": True, "right": False}
    assert infos == {"left": {"success": True}, "right": {"success": False}}
    assert env.agents == ["right"]
    obs, rewards, ended, _, _ = env.step({"right": 1})
    assert set(obs) == set(rewards) == {"right"} and ended == {"right": True}
    env.reset()
    assert env.agents == ["left", "right"]
    assert lift(env, 0, 0)[0]["left"]["own"] == 0.0


def test_a_lift_may_slip_and_the_clock_ends_an_episode():
    env = Sure(slips=True)
    env.reset()
    for step in range(1, STEPS + 1):
        obs, _, ended, cut, _ = lift(env, 1, 1)
        assert obs["left"]["own"] == 0.0
        assert cut == dict.fromkeys(["left", "right"], step == STEPS)
        assert not any(ended.values())
    assert env.agents == []


@pytest.mark.parametrize("seed", [0, 1])
def test_the_seed_decides_who_slips(seed):
    def heights(first):
        env = Carry()
        env.reset(seed=first)
        return [float(lift(env, 1, 1)[0]["left"]["own"][0]) for _ in range(2)]

    assert heights(seed) == heights(seed)
    floors = np.random.default_rng(seed).random((2, 2))[:, 0] >= SLIP
    assert heights(seed) == list(np.cumsum(floors) / TOP)


def test_without_a_seed_the_random_sequence_continues():
    env = Carry()
    env.reset(seed=5)
    lift(env, 1, 1)
    env.reset()
    found = [float(lift(env, 1, 1)[0]["left"]["own"][0]) for _ in range(2)]
    floors = np.random.default_rng(5).random((3, 2))[1:, 0] >= SLIP
    assert found == list(np.cumsum(floors) / TOP)
