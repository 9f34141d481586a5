"""Goals of online RL: what hindsight asks of algorithm and environment, and which states become goals."""

from contextlib import nullcontext
from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.errors import ConfigError, EnvError
from imitate.train.online import goals as module
from imitate.train.online.goals import (
    ACHIEVED,
    DESIRED,
    Hindsight,
    check_hindsight,
    goals_alike,
    make_hindsight,
    stored_keys,
    subgoals,
)
from tests.refusals import refused


def config(
    *, enabled=True, modality="low_dim", ends=None, steps=1, endless=False, buffer=True, **needs
):
    transitions = Words(n_step=steps, infinite_horizon=endless) if buffer else None
    words = {"environment_rewards": True, "returns": None, **needs}
    hindsight = Words(enabled=enabled, share=0.5, strategy="final", ends_at_goal=ends)
    return Words(
        algo_name="sac",
        algo=Words(data_needs=lambda config: Words(transitions=transitions, **words)),
        observation=Words(modality_of=lambda group: {DESIRED: modality}),
        all_obs_keys=("s", DESIRED),
        train=Words(online=Words(hindsight=hindsight, end_at_success=True)),
    )


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        ({}, None),
        ({"enabled": False, "buffer": False}, None),
        ({"buffer": False}, "sac has no replay buffer"),
        ({"steps": 2}, "the rewards of 2 steps in a row|set algo.n_step to 1"),
        ({"environment_rewards": False}, "sac does not learn from the environment's rewards"),
        ({"endless": True}, "sac does not learn from the environment's rewards"),
        ({"returns": "mean"}, "sac needs returns of whole episodes"),
        ({"modality": None}, "'desired_goal', a vector, but does not observe it"),
        ({"modality": "rgb"}, "'desired_goal', a vector, but has it under rgb"),
    ],
)
def test_what_hindsight_asks_of_an_algorithm(words, refusal):
    if refusal is None:
        check_hindsight(config(**words))
        return
    with refused("train.online.hindsight.enabled: |" + refusal, error=ConfigError):
        check_hindsight(config(**words))


def test_stored_goals_and_their_statistics():
    assert stored_keys(config()) == (ACHIEVED, DESIRED, "s")
    assert stored_keys(config(enabled=False)) == (DESIRED, "s")
    assert goals_alike(config()) == {ACHIEVED: (ACHIEVED, DESIRED), DESIRED: (ACHIEVED, DESIRED)}
    assert goals_alike(config(enabled=False)) == {}


class Place:
    """Each step moves by the action, towards a goal at 3; ``fault`` says in what its rewards err, and by how much."""

    name, action_dim = "place", 1
    action_low, action_high = np.array([0.25]), np.array([1.0])

    def __init__(self, fault="", size=0.0):
        self.fault, self.size = fault, size

    def reset(self, *, seed):
        assert seed == 0
        self.place = 0.0

    def step(self, action):
        self.place += float(action[0])
        earned = self.place - 3.0 + (self.size if self.fault == "step" else 0.0)
        return {ACHIEVED: np.array([self.place]), DESIRED: np.array([3.0])}, earned, False

    def goal_rewards(self, achieved, desired):
        assert achieved.dtype == desired.dtype == np.float32
        rewards = -np.abs(achieved - desired).sum(-1)
        if self.fault == "many" and len(rewards) > 1:
            rewards[3] += self.size
        return rewards.sum(keepdims=True) if self.fault == "shape" else rewards


SHAPES = {ACHIEVED: (1,), DESIRED: (1,)}


@pytest.mark.parametrize(
    ("env", "refusal"),
    [
        (Place("many", 5e-6), None),
        (Place("many", 5e-3), "gives [-2.75, -2.5, -0.25, -0.245"),
        (Place("step", 1e-4), None),
        (
            Place("step", 5e-2),
            "place: steps gave the rewards [-2.7, -2.45], but|gives [-2.75, -2.5]",
        ),
        (Place("shape"), "gives an array of shape (1,) for 4 goals, expected (4,)"),
        (Words(name="plain"), "plain: hindsight needs gymnasium's goal environments"),
    ],
)
def test_what_hindsight_asks_of_an_environment(env, refusal):
    if refusal is None:
        found = make_hindsight(config(), env, SHAPES)
        assert (found.share, found.strategy, found.ends_at_goal) == (0.5, "final", True)
        assert not make_hindsight(config(ends=False), env, SHAPES).ends_at_goal
        return
    with refused(refusal, error=EnvError):
        make_hindsight(config(), env, SHAPES)


@pytest.mark.parametrize("shapes", [((1,), (2,)), ((2, 2), (2, 2))])
def test_goals_are_vectors_of_one_size(shapes):
    words = f"'achieved_goal' has shape {shapes[0]} and 'desired_goal' {shapes[1]}: set"
    with refused(words, error=EnvError):
        make_hindsight(config(), Place(), dict(zip((ACHIEVED, DESIRED), shapes, strict=True)))


def test_four_of_five_samples_are_relabelled_unless_said_otherwise():
    plain = Hindsight(None)
    assert (plain.share, plain.strategy, plain.ends_at_goal) == (0.8, "future", False)


def test_ten_states_of_each_demonstration_become_goals(monkeypatch):
    lengths = {"demo_0": 21, "demo_1": 3, "demo_2": 1, "demo_3": 12}

    class File:
        def demos(self, filter_key):
            assert filter_key == "train"
            return list(lengths)

        def read(self, demo, key):
            assert key == "obs/s"
            return 100 * list(lengths).index(demo) + np.arange(lengths[demo])[:, None]

    monkeypatch.setattr(module, "data_files", lambda config, files: nullcontext(files))
    monkeypatch.setattr(module, "training_filter_key", lambda entry, config, files: "train")
    files = Words(open=lambda path: File())
    given = Words(train=Words(data=[Words(path="a.hdf5")]))
    found = [int(point[0]) for point in subgoals(given, "s", files)]
    last = [301, 302, 303, 304, 306, 307, 308, 309, 310, 311]
    assert found == [*range(2, 21, 2), 101, 102, *last]
    for most in (12, 11):
        monkeypatch.setattr(module, "MOST_SUBGOALS", most)
        assert len(subgoals(given, "s", files)) == most
    for data, key in ((None, "s"), (given.train.data, None)):
        with refused("states of demonstrations are goals|train.data", error=ConfigError):
            subgoals(Words(train=Words(data=data)), key, files)
