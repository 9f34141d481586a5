"""Several agents as lanes of one simulator, on an environment that is worked out by hand."""

import functools

import numpy as np
import pytest

from imitate.errors import EnvError
from imitate.train.online.env_group import EnvGroup
from imitate.train.online.learners import stacked
from imitate.train.online.replay import ReplayBuffer


class Walkers:
    """Agent k walks by its action and leaves, as a terminal, after k + 2 steps; rewards are 10 k + the place."""

    name, action_dim, num_choices = "walkers", 1, 0
    action_low, action_high = np.array([-1.0]), np.array([1.0])

    def __init__(self, agents=2, breaks_at=None):
        self.agents = tuple(f"walker_{k}" for k in range(agents))
        self.breaks_at, self.seeds, self.closed = breaks_at, [], False

    def reset(self, *, seed=None):
        self.seeds.append(seed)
        self.steps, self.places = 0, [0.0] * len(self.agents)
        return [self._obs(k) for k in range(len(self.agents))], {}

    def step(self, actions):
        self.steps += 1
        if self.steps == self.breaks_at:
            raise RuntimeError("the floor is gone")
        outcomes = []
        for k, action in enumerate(actions):
            if self.steps > k + 2:
                outcomes.append(None)
                continue
            self.places[k] += float(action[0])
            over = self.steps == k + 2
            outcomes.append(
                (self._obs(k), 10.0 * k + self.places[k], over, False, {"success": over})
            )
        return outcomes

    def _obs(self, k):
        return {"place": np.array([self.places[k]])}

    def close(self):
        self.closed = True


def group(make=Walkers, lanes=4, **kwargs):
    made = EnvGroup(make, np.arange(lanes), seed=3, **{"horizon": 10, **kwargs})
    made.reset()
    return made


ONES = np.ones((4, 1))


def test_each_agent_is_a_lane_and_all_of_a_copy_begin_together():
    envs = group()
    assert len(envs.envs) == 2 and len(envs) == 4
    first = envs.step(ONES)
    assert first.rewards.tolist() == [1.0, 11.0, 1.0, 11.0] and first.lost is None
    assert envs.step(ONES).terminals.tolist() == [True, False, True, False]
    assert envs.finished == []  # the others still walk
    third = envs.step(ONES)
    # Those that left take no step; their lanes end with the others' and all begin anew.
    assert third.lost.tolist() == [True, False, True, False]
    assert third.rewards.tolist() == [0.0, 13.0, 0.0, 13.0]
    assert third.terminals.tolist() == [False, True, False, True]
    assert envs.obs["place"].tolist() == [[0.0]] * 4
    assert [len(env.seeds) for env in envs.envs] == [2, 2]
    assert envs.envs[0].seeds[0] != envs.envs[1].seeds[0]


def test_records_are_of_each_agent_and_know_the_sum():
    envs = group(lanes=2)
    for _ in range(3):
        envs.step(ONES[:2])
    returns = [(r.env_return, r.length, r.success) for r in envs.finished]
    assert returns == [(1.0 + 2.0, 2, True), (11.0 + 12.0 + 13.0, 3, True)]
    for record in envs.finished:
        assert record.info["team_return"] == 39.0
        assert record.info["return_walker_0"] == 3.0 and record.info["return_walker_1"] == 36.0


def test_the_clock_ends_all_at_once():
    envs = group(functools.partial(Walkers, 3), lanes=3, horizon=3)
    steps = [envs.step(np.ones((3, 1))) for _ in range(3)]
    assert steps[2].terminals.tolist() == [False, True, False]
    assert steps[2].timeouts.tolist() == [False, False, True]
    assert len(envs.finished) == 3 and [r.length for r in envs.finished] == [2, 3, 3]


def test_success_ends_the_episode_where_all_have_it():
    envs = group(lanes=2, end_at_success=True)
    for _ in range(2):
        step = envs.step(ONES[:2])
    assert step.terminals.tolist() == [True, False]


def test_a_copy_that_fails_loses_the_episodes_of_its_agents_alone():
    made = []

    def make():
        made.append(Walkers(breaks_at=2 if len(made) == 1 else None))
        return made[-1]

    envs = group(make)
    envs.step(ONES)
    assert envs.step(ONES).lost.tolist() == [False, False, True, True]
    assert made[1].closed and len(made) == 3
    assert (
        "environment of lanes [2, 3] failed (RuntimeError: the floor is gone; " in envs.messages[0]
    )
    assert envs.obs["place"].tolist() == [[0.0], [2.0], [0.0], [0.0]]


def test_a_replay_buffer_holds_the_steps_that_were_taken():
    envs = group(lanes=2)
    memory = ReplayBuffer({"place": (1,)}, 1, 100, num_envs=2)
    for _ in range(6):
        memory.add(envs.step(ONES[:2]), envs.lanes)
    assert len(memory) == 10  # two episodes of 2 and 3 steps
    episodes = [(e.rewards.tolist(), e.terminals.tolist()) for e in memory.episodes()]
    short, long = ([1.0, 2.0], [False, True]), ([11.0, 12.0, 13.0], [False, False, True])
    assert episodes == [short, short, long, long]


def test_a_rollout_leaves_the_waiting_out():
    envs = group(lanes=2)
    rollout = stacked([envs.step(ONES[:2]) for _ in range(6)])
    assert rollout["mask"].T.tolist() == [[True, True, False] * 2, [True] * 6]
    assert rollout["terminals"].T.tolist() == [[False, True, False] * 2, [False, False, True] * 2]


def test_lanes_have_to_be_whole_copies():
    with pytest.raises(EnvError, match="5 lanes cannot be divided among copies of 2 agents"):
        group(lanes=5)


class Blind(Walkers):
    """The last agent of the copy that is made second sees NaN at its second step."""

    made = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1
        self.number = type(self).made

    def _obs(self, k):
        is_bad = self.number == 2 and k == 1 and self.steps == 2
        return {"place": np.array([np.nan if is_bad else self.places[k]])}


def test_an_observation_that_is_not_finite_ends_the_episode_of_its_copy():
    Blind.made = 0
    made = group(Blind)
    made.step(ONES)
    step = made.step(ONES)
    assert step.lost.tolist() == [False, False, True, True]
    words = "environment of lanes [2, 3] failed (ValueError: observation 'place' holds NaN or inf)"
    assert [text.partition(";")[0] for text in made.messages] == [words]
    assert Blind.made == 3 and made.lengths.tolist() == [2, 2, 0, 0]
