import math
from dataclasses import replace

import numpy as np
import pytest

from imitate.envs.experts import Habits, HumanLike, find_expert
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, ExpertLayout

from .hands import PLAIN

STEADY = replace(
    Habits(),
    start_steps=(0, 1),
    pause_probability=0.0,
    overshoot_probability=0.0,
    miss_probability=0.0,
    sway=0.0,
)
OBS = {f"robot{arm}_gripper_qpos": np.array([0.04, -0.04]) for arm in (0, 1)}


class Onward(Expert):
    """Goes in one direction with both arms; closes the second arm's fingers from step 5 on."""

    env_name = "Onward"
    horizon = 100
    layout = ExpertLayout(arms=2)
    clearance_m = None
    speed = 0.5
    steps = 0

    def act(self, obs):
        self.steps += 1
        arm = np.array([self.speed, 0.0, 0.0, 0.0, 0.0, 0.0])
        return np.array([*arm, OPEN, *arm, CLOSE if self.steps > 5 else OPEN])


def person(habits, seed=0, expert=Onward):
    return HumanLike(expert(PLAIN), np.random.default_rng(seed), habits)


def test_an_unsteady_hand_leaves_its_course_slowly_and_comes_back():
    who = person(replace(STEADY, sway=0.1, sway_steps=8.0, grasp_steps=(0, 1)))
    off = np.array([who.act(OBS) for _ in range(4000)])[:, [1, 2, 4, 8]]
    # at half of the full speed, half of the deviation
    np.testing.assert_allclose(off.std(axis=0), 0.05, rtol=0.2)
    assert np.abs(off.mean(axis=0)).max() < 0.02
    for column in off.T:
        neighbours = np.corrcoef(column[:-1], column[1:])[0, 1]
        assert neighbours == pytest.approx(math.exp(-1 / 8), abs=0.04)
    assert abs(np.corrcoef(off[:, 0], off[:, 3])[0, 1]) < 0.25  # each arm in its own way


def test_a_hand_that_stands_still_does_not_sway():
    who = person(replace(STEADY, sway=0.3, grasp_steps=(0, 1)))
    who.expert.speed = 0.0
    motion = np.array([who.act(OBS) for _ in range(50)])[:, who.expert.layout.motion.ravel()]
    assert (motion == 0.0).all()


def test_both_arms_wait_before_one_closes_its_fingers():
    who = person(replace(STEADY, grasp_steps=(7, 8)))
    actions = np.array([who.act(OBS) for _ in range(20)])
    closed = np.flatnonzero(actions[:, 13] == CLOSE)
    assert closed[0] == 5 + 7  # after the wait, not when the expert wants it
    assert (actions[:, 6] == OPEN).all()
    assert (actions[5:12][:, who.expert.layout.motion.ravel()] == 0.0).all()
    assert (actions[:5, 0] == 0.5).all()
    assert (actions[12:, 7] == 0.5).all()


def test_a_task_without_a_miss_keeps_its_aim():
    who = person(replace(STEADY, miss_probability=1.0))
    np.testing.assert_array_equal(who.expert.style.grasp_offset_m, np.zeros(3))
    lift = person(replace(STEADY, miss_probability=1.0), expert=find_expert("Lift"))
    assert lift.expert.style.grasp_offset_m[2] > 0.04


def test_ways_differ_from_episode_to_episode():
    styles = [person(Habits(), seed).expert.style for seed in range(200)]
    bends = np.array([style.detour_m for style in styles])
    assert bends.min() < -0.05 and bends.max() > 0.05
    hovers = np.array([style.hover_m for style in styles])
    assert hovers.min() < 0.06 < 0.11 < hovers.max()
    speeds = np.array([style.speed for style in styles])
    assert speeds.max() / speeds.min() > 2.0


def test_the_same_seed_moves_the_same():
    first, again = person(Habits(), 3), person(Habits(), 3)
    for _ in range(60):
        np.testing.assert_array_equal(first.act(OBS), again.act(OBS))
