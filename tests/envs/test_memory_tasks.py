import numpy as np
import pytest

from imitate.envs.gymnasium_env import GymnasiumEnv
from imitate.envs.worlds.tasks import Recall

MODULE = "imitate.envs.worlds.tasks"


def episode(env, answer, seed):
    """The cue, what else was seen, the rewards and what the last step said."""
    cue = env.reset(seed=seed)[0]
    steps = []
    while not steps or not steps[-1][2]:
        steps.append(env.step(answer(float(cue[0]))))
    return cue, np.stack([step[0] for step in steps]), [step[1] for step in steps], steps[-1]


def test_the_cue_is_seen_once_and_asked_for_at_the_end():
    env = Recall(delay=2)
    cue, later, rewards, last = episode(env, lambda cue: int(cue > 0), seed=0)
    assert cue.tolist() in ([-1.0, 0.0], [1.0, 0.0])
    assert later.tolist() == [[0, 0], [0, 0], [0, 1], [0, 0]]
    assert rewards == [0, 0, 0, 1]
    assert last[4]["success"] and not last[3]
    _, _, rewards, last = episode(env, lambda cue: int(cue < 0), seed=0)
    assert rewards == [0, 0, 0, -1]
    assert not last[4]["success"]


def test_numbers_count_by_how_sure_they_are():
    _, _, rewards, last = episode(Recall(True), lambda cue: np.array([cue * 0.25]), seed=1)
    assert rewards[-1] == pytest.approx(0.25)
    assert last[4]["success"]


def test_both_cues_come_and_a_seed_gives_the_same():
    first = [float(Recall().reset(seed=seed)[0][0]) for seed in range(30)]
    assert first == [float(Recall().reset(seed=seed)[0][0]) for seed in range(30)]
    assert set(first) == {-1.0, 1.0}


@pytest.mark.parametrize(
    ("name", "whole", "seen"),
    [
        ("CartPoleNoVelocity-v1", "CartPole-v1", [0, 2]),
        ("PendulumNoVelocity-v1", "Pendulum-v1", [0, 1]),
    ],
)
def test_velocities_are_hidden(name, whole, seen):
    part, env = GymnasiumEnv(f"{MODULE}:{name}"), GymnasiumEnv(whole)
    shown, full = part.reset(seed=3)[0]["flat"], env.reset(seed=3)[0]["flat"]
    np.testing.assert_array_equal(shown, full[seen])
    shown, full = (e.step(e.action_high * 0.5)[0]["flat"] for e in (part, env))
    np.testing.assert_array_equal(shown, full[seen])
    assert part.action_dim == env.action_dim
