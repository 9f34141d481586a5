import functools

import gymnasium
import numpy as np
import pytest

from imitate.checks.env import check_env
from imitate.envs import make_env
from tests.train.online.worlds import Faulty, Line


class Complete(Line):
    """With all that an environment offers."""

    def step(self, action):
        obs, reward, terminated, _, info = super().step(action)
        return obs, reward, terminated, self.steps >= 30, info

    def is_success(self):
        return {"task": self.steps >= 3}

    def get_state(self):
        return {"states": np.array([self.place])}

    def reset_to(self, state):
        self.place = float(state["states"][0])
        return self.obs()


def verdicts(make, **kwargs):
    return {f.name: (f.verdict, f.words) for f in check_env(make, {"type": 1}, **kwargs)}


def test_a_sound_environment():
    found = verdicts(Complete)
    assert {name for name, (verdict, _) in found.items() if verdict != "ok"} == set()
    assert found["episode end"][1] == "ended after 30 random steps by its time limit"


def test_pendulum_and_what_it_cannot():
    meta = {"env_name": "Pendulum-v1", "type": 2}
    found = {f.name: f.verdict for f in check_env(functools.partial(make_env, meta), meta)}
    assert found.pop("states") == "absent"
    assert found["seeding"] == found["limits"] == found["episode end"] == "ok"
    assert "error" not in found.values()


def test_words_of_gymnasiums_checker_have_no_colours():
    meta = {"env_name": "Pendulum-v1", "type": 2}
    words = [f.words for f in check_env(functools.partial(make_env, meta), meta)]
    assert any("symmetric and normalized" in word for word in words)
    assert not any("\x1b" in word for word in words)


class OfMany(gymnasium.Env):
    """A gymnasium environment with its own generator; with several copies its values are batches."""

    def __init__(self, num_envs=1):
        self.many = num_envs
        self.observation_space = gymnasium.spaces.Box(-9, 9, (num_envs * 2,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1, 1, (num_envs,), np.float32)

    def reset(self, *, seed=None, options=None):
        self.random = np.random.default_rng(seed)
        return self.seen(), {}

    def seen(self):
        return self.random.normal(size=2 * self.many).clip(-9, 9).astype(np.float32)

    def step(self, action):
        over = np.zeros(self.many, bool) if self.many > 1 else False
        return self.seen(), action if self.many > 1 else 0.5, over, over, {"success": False}


def test_batches_are_named_and_a_generator_of_its_own_is_no_error():
    gymnasium.register("OfMany-v0", OfMany)
    meta = {"env_name": "OfMany-v0", "type": 2, "env_kwargs": {}}
    found = {f.name: f for f in check_env(functools.partial(make_env, meta), meta)}
    assert found["gymnasium's checker"].verdict == "warning" and found["seeding"].verdict == "ok"
    assert "seeds work all the same" in found["gymnasium's checker"].words
    meta["env_kwargs"]["num_envs"] = 3
    words = [f.words for f in check_env(functools.partial(make_env, meta), meta)]
    batch = "returns a batch (terminated has shape (3,), the reward (3,)); expected one environment"
    assert any(batch in said for said in words)
    del gymnasium.registry["OfMany-v0"]


def test_a_choice_and_observations_without_bounds_need_nothing():
    meta = {"env_name": "CartPole-v1", "type": 2, "env_kwargs": {}}
    found = {f.name: f for f in check_env(functools.partial(make_env, meta), meta)}
    assert found["made"].words == "CartPole-v1, actions are one of 2 choices"
    assert found["gymnasium's checker"].verdict == "ok"


class Unseeded(Complete):
    def reset(self, *, seed=None):
        obs, info = super().reset(seed=seed)
        self.place += np.random.rand()
        return self.obs(), info


class AlwaysAlike(Complete):
    def reset(self, *, seed=None):
        return super().reset(seed=0)


class EndsAtOnce(Complete):
    def step(self, action):
        return *super().step(action)[:2], True, False, {"success": False}


class Endless(Complete):
    def step(self, action):
        return *super().step(action)[:2], False, False, {}


class Forgetful(Complete):
    def reset_to(self, state):
        return self.obs()


class Upside(Complete):
    action_low, action_high = Line.action_high, Line.action_low


@pytest.mark.parametrize(
    ("make", "name", "verdict", "words"),
    [
        (Unseeded, "seeding", "error", "np_random"),
        (AlwaysAlike, "seeding", "warning", "the same state"),
        (EndsAtOnce, "episode end", "error", "first step"),
        (Endless, "episode end", "warning", "train.online.horizon"),
        (Endless, "success", "ok", "unknown: info has neither 'success' nor 'is_success'"),
        (AlwaysAlike, "success", "ok", "reported; true in 28 of 30 random steps"),
        (Forgetful, "states", "error", "differs"),
        (Upside, "limits", "error", "not below"),
        (functools.partial(Faulty, "shape", 5), "observations", "error", "shapes change"),
        (functools.partial(Faulty, "nan_obs", 5), "observations", "error", "NaN"),
        (functools.partial(Faulty, "crash", 5), "observations", "error", "the simulator is gone"),
    ],
)
def test_what_is_wrong_is_named(make, name, verdict, words):
    found = verdicts(make)[name]
    assert found[0] == verdict and words in found[1]
