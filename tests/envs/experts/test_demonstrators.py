from dataclasses import replace

import numpy as np
import pytest

from imitate.envs.experts import LEVELS, QUALITIES, Habits, HumanLike, Style
from imitate.envs.experts.expert import CLOSE, OPEN, Expert, ExpertLayout
from imitate.envs.experts.pick_and_place import LiftExpert

from .hands import PLAIN, near
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


class Given(Expert):
    """Takes its action from the observation, and shows where it aims."""

    env_name, horizon, clearance_m, pace = "Given", 100, 0.05, 1.25
    layout = ExpertLayout(arms=2)

    def act(self, obs):
        return obs["wanted"] + np.array([*self.style.grasp_offset_m, *[0.0] * 11])


class NeverMisses(Given):
    clearance_m = None


def seen(random):
    """Observations of two hands with fingers and commands near the thresholds, which stay for some steps."""
    widths, wanted, hand = np.full(2, 0.08), np.zeros(14), np.array([0.0, 0.0, 1.0])
    while True:
        for arm in (0, 1):
            if random.random() < 0.15:
                widths[arm] = random.choice([near(random, 0.015, 0.03, 0.066, 0.068), 0.08])
            if random.random() < 0.1:
                wanted[7 * arm + 6] = random.choice([OPEN, CLOSE, CLOSE])
            if random.random() < 0.3:
                wanted[7 * arm] = random.choice([near(random, 0.25, 0.375), 0.0, 1.2])
                wanted[7 * arm + 1 : 7 * arm + 6] = random.choice([0.0, 0.1])
        fingers = {
            f"robot{arm}_gripper_qpos": widths[arm] * np.array([0.5, -0.5]) for arm in (0, 1)
        }
        hand = hand + 0.02 * random.uniform(-1.0, 1.0, 3)
        yield {**above(hand), **fingers, "wanted": wanted.copy()}


STEADY = Habits(speed_range=(0.5, 0.5), sway=0.0, start_steps=(2, 4))


@pytest.mark.parametrize(
    ("make", "total"),
    [
        (LEVELS["okay"], 46.346725288),
        (LEVELS["worse"], 91.187151922),
        (LEVELS["noise"], -38.843344366),
        (lambda expert, rng: HumanLike(expert, rng, Habits()), 78.591237496),
        (lambda expert, rng: HumanLike(expert, rng, STEADY), 89.881255564),
        (lambda expert, rng: HumanLike(NeverMisses(PLAIN), rng, STEADY), 48.852362981),
    ],
)  # fmt: skip
def test_demonstrations_are_the_same_in_each_version(make, total):
    found = 0.0
    for seed in range(20):
        random = np.random.default_rng(seed)
        who = make(Given(PLAIN), np.random.default_rng(seed + 100))
        for obs, _ in zip(seen(random), range(130), strict=False):
            action, style = who.act(obs), who.expert.style
            shown = np.array(
                [*action, *style.detour_m, style.hover_m, style.margin_m, who.gave_up, who.still]
            )
            found += float(shown @ random.uniform(-1.0, 1.0, len(shown)))
    assert found == pytest.approx(total, abs=1e-6)
