"""Failed episodes that look solved name what they observe; near misses and solved episodes do not."""

import numpy as np
import pytest

from imitate.checks.ends import LooksSolved, Watched, is_right, of_frame

COLUMNS = {"pos": slice(0, 2), "goal": slice(2, 4)}


def episode(rng, see=lambda goal: goal, miss=0.0, steps=30):
    """A point goes 0.4 of the way to the goal that it sees in each step; within 0.05 of the true one it is solved."""
    pos, goal = rng.uniform(-1, 1, 2), rng.uniform(-1, 1, 2)
    seen, solved = [], []
    for _ in range(steps):
        seen.append(np.concatenate([pos, see(goal)]))
        pos = pos + 0.4 * (see(goal) + miss - pos)
        solved.append(bool(np.linalg.norm(pos - goal) < 0.05))
        if sum(solved) > 3:
            break
    return Watched(np.array(seen), np.array(solved))


def episodes(number, seed, **how):
    rng = np.random.default_rng(seed)
    return [episode(rng, **how) for _ in range(number)]


@pytest.mark.parametrize(
    ("how", "named"),
    [
        ({"see": lambda goal: goal[::-1]}, True),
        ({"see": lambda goal: goal + [0.3, 0]}, True),
        ({"see": lambda goal: -goal}, True),
        ({"miss": 0.1}, False),
        ({"steps": 2}, False),
    ],
)
def test_failed_episodes_that_look_solved(how, named):
    looks, recorded = LooksSolved(episodes(30, 0)), episodes(12, 1, **how)
    cause = of_frame(looks, recorded, COLUMNS)
    assert cause.is_named == named and not is_right(looks, recorded)
    assert cause.words.endswith("'goal' does not describe the scene")


def test_solved_episodes_show_that_observations_describe_the_scene():
    looks, recorded = LooksSolved(episodes(30, 0)), episodes(12, 1)
    assert is_right(looks, recorded) and of_frame(looks, recorded, COLUMNS) is None


@pytest.mark.parametrize(("solved", "named"), [(4, True), (12, False)])
def test_failures_are_near_misses_if_as_many_solved_episodes_end_alike(solved, named):
    looks = LooksSolved(episodes(30, 0))
    missed = [one._replace(solved=np.zeros_like(one.solved)) for one in episodes(11, 1)]
    cause = of_frame(looks, [*missed, *episodes(solved, 2)], COLUMNS)
    assert cause.is_named == named


def test_ends_that_have_nothing_in_common_show_nothing():
    rng = np.random.default_rng(0)
    last = np.arange(20) == 19
    aimless = [Watched(rng.normal(size=(20, 4)), last) for _ in range(30)]
    failed = [one._replace(solved=np.zeros(20, dtype=bool)) for one in aimless]
    for demos in (aimless, aimless[:3], []):
        looks = LooksSolved(demos)
        assert of_frame(looks, failed, COLUMNS) is None and not is_right(looks, aimless)


def test_two_demonstrations_for_each_number_are_needed():
    demos = episodes(20, 0)
    wide = [one._replace(vectors=np.tile(one.vectors, 3)) for one in demos]
    assert LooksSolved(demos).reliable and not LooksSolved(wide).reliable
