from dataclasses import replace

import numpy as np
import pytest

from imitate.envs.experts import LEVELS, QUALITIES, Style
from imitate.envs.experts.expert import CLOSE, OPEN
from imitate.envs.experts.pick_and_place import LiftExpert

from .hands import observation as above

AT_THE_CUBE = (0.0, 0.0, 0.83)


def observation(eef=AT_THE_CUBE, width=0.08):
    return above(eef, AT_THE_CUBE, width)


def demonstrator(quality, seed=0):
    rng = np.random.default_rng(seed)
    return LEVELS[quality](LiftExpert(Style.sample(rng, quality)), rng)


def test_every_level_has_a_demonstrator():
    assert tuple(LEVELS) == QUALITIES == ("better", "okay", "worse", "noise")


def test_the_best_is_the_expert_and_draws_nothing():
    rng = np.random.default_rng(0)
    expert = LiftExpert(Style.sample(rng))
    before = rng.bit_generator.state
    obs = observation(eef=(0.05, 0.0, 0.9))
    np.testing.assert_array_equal(LEVELS["better"](expert, rng).act(obs), expert.act(obs))
    assert rng.bit_generator.state == before


def test_the_second_goes_by_way_points_and_then_does_the_task():
    who = demonstrator("okay")
    hand, visited = np.array([0.0, 0.0, 1.0]), [np.array([0.0, 0.0, 1.0])]
    for _ in range(400):
        action = who.act(observation(eef=hand))
        hand = hand + 0.015 * action[:3]
        visited.append(hand)
        if action[6] == CLOSE:
            break
    assert action[6] == CLOSE  # it ends at the cube
    aside = np.linalg.norm(np.array(visited)[:, :2], axis=1).max()
    assert aside > 0.05  # straight down would be 0
    assert len(visited) > 40


def test_the_third_misses_rises_empty_tries_again_and_gives_up():
    def aims(seed):
        who, tries, previous = demonstrator("worse", seed), [], None
        for _ in range(500):
            who.act(observation(width=0.0))  # whatever it does, nothing is between the fingers
            offset = tuple(who.expert.style.grasp_offset_m)
            if offset != previous:
                tries.append(np.linalg.norm(offset[:2]))
                previous = offset
            if who.gave_up:
                return tries, True
        return tries, False

    found = [aims(seed) for seed in range(60)]
    assert all(gave_up for _, gave_up in found)
    first = np.array([tries[0] for tries, _ in found])
    # far beside the cube in 65 % of the tries, else as exact as its habits
    assert 0.5 < (first > 0.02).mean() < 0.8
    assert first.max() < 0.065
    assert max(len(tries) for tries, _ in found) > 2


def test_the_third_lets_slip_what_it_holds():
    opened = 0
    for seed in range(60):
        who = demonstrator("worse", seed)
        who.expert.style = replace(who.expert.style, grasp_offset_m=np.zeros(3))  # no miss
        held = [who.act(observation(width=0.045))[6] for _ in range(20)]
        if OPEN in held:
            opened += 1
            assert held.index(OPEN) >= 2
    assert 0.4 < opened / 60 < 0.8  # DROP is 0.6


def test_the_fourth_wanders_and_ends():
    who, obs = demonstrator("noise"), observation()
    actions = []
    while not who.gave_up:
        actions.append(who.act(obs))
    actions = np.array(actions)
    assert 60 <= len(actions) < 120
    assert abs(actions[:, :3].mean()) < 0.3
    assert np.corrcoef(actions[:-1, 0], actions[1:, 0])[0, 1] > 0.5
    assert set(np.unique(actions[:, 6])) == {OPEN, CLOSE}


@pytest.mark.parametrize("quality", QUALITIES)
def test_the_same_seed_demonstrates_the_same(quality):
    obs = observation(eef=(0.04, 0.02, 0.9))
    first, again = demonstrator(quality, 3), demonstrator(quality, 3)
    for _ in range(30):
        np.testing.assert_array_equal(first.act(obs), again.act(obs))
