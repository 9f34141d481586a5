"""Actions that were executed instead of the policy's, and the steps in which a person acted."""

import numpy as np
import pytest

from imitate.config.data_needs import Transitions
from imitate.data.file.episode import Episode
from imitate.errors import RobotError
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import Corrected
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.steps import Step

from .worlds import Line


class Overridden(Line):
    """A person acts in each third step, by 0.5; elsewhere actions are cut at 1."""

    def step(self, action):
        by_person = self.steps % 3 == 2
        executed = np.array([0.5]) if by_person else np.clip(action, -1.0, 1.0)
        obs, reward, terminated, truncated, info = super().step(executed)
        told = {"executed_action": executed, "intervened": by_person}
        return obs, reward, terminated, truncated, {**info, **told}


def memory(capacity=40, lanes=1, **rest):
    return ReplayBuffer({"place": (1,)}, 1, capacity, num_envs=lanes, **rest)


def test_what_was_executed_is_what_is_stored():
    group = EnvGroup(Overridden, np.arange(1), seed=0, horizon=6)
    group.reset()
    steps = [group.step(np.array([[1.7]], dtype=np.float32)) for _ in range(6)]
    assert [float(step.actions[0, 0]) for step in steps] == [1.0, 1.0, 0.5, 1.0, 1.0, 0.5]
    assert [step.intervened is not None for step in steps] == [False, False, True] * 2
    ring = memory()
    for step in steps:
        ring.add(step)
    assert np.flatnonzero(ring.intervened).tolist() == [2, 5]
    np.testing.assert_allclose(ring.actions[:6, 0], [1.0, 1.0, 0.5, 1.0, 1.0, 0.5])


def test_an_environment_that_tells_nothing_stores_the_policys_actions():
    group = EnvGroup(Line, np.arange(2), seed=0, horizon=6)
    group.reset()
    actions = np.full((2, 1), 1.7)
    step = group.step(actions)
    assert step.actions is actions and step.intervened is None


def test_a_robot_that_was_stopped_is_not_begun_anew():
    made = []

    class Stopped(Line):
        def __init__(self):
            made.append(self)
            super().__init__()

        def step(self, action):
            raise RobotError("the watchdog fired")

    group = EnvGroup(Stopped, np.arange(1), seed=0, horizon=6)
    group.reset()
    with pytest.raises(RobotError, match="watchdog"):
        group.step(np.zeros((1, 1)))
    assert len(made) == 1


def numbered(k, by_person=False):
    """A step whose action is its number."""
    place, no = np.array([[float(k)]]), np.zeros(1, dtype=bool)
    by_whom = np.array([True]) if by_person else None
    zero, following = np.zeros(1, np.float32), {"place": place + 1}
    return Step({"place": place}, place, zero, no, no, following, intervened=by_whom)


def filled(number, by_person, **rest):
    """Numbered steps; of those ``by_person`` a person's."""
    ring = memory(**rest)
    for k in range(number):
        ring.add(numbered(k, k in by_person))
    return ring


def demonstrations(number):
    """Steps whose action is -1."""
    ring = memory()
    places = np.zeros((number, 1))
    ends = np.arange(number) == number - 1
    ring.add_episode(
        Episode({"place": places}, places - 1.0, np.zeros(number), ends, np.zeros(number, bool))
    )
    return ring


def test_marks_are_saved_and_overwritten_with_their_steps():
    ring = filled(10, (3, 8), capacity=12)
    again = memory(capacity=12)
    again.load_state_dict(ring.state_dict())
    assert np.flatnonzero(again.intervened).tolist() == [3, 8]
    old = ring.state_dict()
    del old["rows"]["intervened"]  # of a version that did not know of persons
    before = memory(capacity=12)
    before.load_state_dict(old)
    assert not before.intervened.any()
    for k in range(6):  # around the ring, over step 3
        ring.add(numbered(k))
    assert np.flatnonzero(ring.intervened).tolist() == [8]


def test_corrections_count_as_demonstrations():
    """Two corrected steps beside six demonstrated ones are a quarter of the samples."""
    ring, demos = filled(20, (5, 6)), demonstrations(6)
    source = Corrected(demos, ring)
    actions = np.concatenate([source.sample(64)["actions"].numpy().ravel() for _ in range(40)])
    assert set(actions) == {-1.0, 5.0, 6.0}
    assert (actions >= 0).mean() == pytest.approx(0.25, abs=0.03)


def test_their_returns_go_on_where_the_person_let_go():
    ring = filled(20, (5,), transitions=Transitions(discount=0.5, n_step=3))
    ring.rewards[5:8] = 1.0, 2.0, 4.0
    demos = memory(transitions=Transitions(discount=0.5, n_step=3))
    demos.add_episode(
        Episode({"place": np.zeros((2, 1))}, np.zeros((2, 1)), np.zeros(2), np.ones(2), np.zeros(2))
    )
    batch = Corrected(demos, ring).sample(32)
    of_person = batch["actions"][:, -1, 0] == 5.0
    assert of_person.any()
    assert set(batch["n_step_rewards"][of_person].tolist()) == {1 + 0.5 * 2 + 0.25 * 4}


def test_without_corrections_nothing_else_is_drawn():
    ring, demos, other = filled(20, ()), demonstrations(6), demonstrations(6)
    before = ring.draws
    batch = Corrected(demos, ring).sample(16)
    np.testing.assert_array_equal(batch["index"], other.sample(16)["index"])
    assert ring.draws == before
