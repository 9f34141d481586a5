import functools
import warnings

import gymnasium
import numpy as np
import pytest

from imitate.checks.env import check_env
from imitate.envs import make_env
from imitate.errors import EnvError
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


def test_batches_are_named_and_a_generator_of_its_own_is_no_error(monkeypatch):
    gymnasium.register("OfMany-v0", OfMany)
    meta = {"env_name": "OfMany-v0", "type": 2, "env_kwargs": {}}
    found = {f.name: f for f in check_env(functools.partial(make_env, meta), meta)}
    assert found["gymnasium's checker"].verdict == "warning" and found["seeding"].verdict == "ok"
    assert "seeds work anyway" in found["gymnasium's checker"].words
    monkeypatch.setattr(np.random, "default_rng", lambda _, make=np.random.default_rng: make())
    found = {f.name: f for f in check_env(functools.partial(make_env, meta), meta)}
    assert found["gymnasium's checker"].verdict == found["seeding"].verdict == "error"
    monkeypatch.undo()
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


class OfOldGym(gymnasium.Env):
    """With a reset that takes no seed, and a step of four values."""

    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self):
        return np.zeros(2, np.float32)

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, False, {}


class SeededOfOldGym(OfOldGym):
    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


@pytest.mark.parametrize(
    ("env", "error", "advice"),
    [
        (OfOldGym, "unexpected keyword argument 'seed'", "`Env.reset` can be passed a `seed`"),
        (SeededOfOldGym, "not enough values to unpack", "old step API"),
    ],
)
def test_an_error_of_the_old_api_is_printed_once_and_its_warnings_are_findings(
    monkeypatch, env, error, advice
):
    spec = gymnasium.envs.registration.EnvSpec(id="OfOldGym-v0", entry_point=env)
    monkeypatch.setitem(gymnasium.registry, "OfOldGym-v0", spec)
    meta = {"env_name": "OfOldGym-v0", "type": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        findings = check_env(functools.partial(make_env, meta), meta)
    tried = findings[1 + [f.name for f in findings].index("limits") :]
    assert [f.name for f in tried if error in f.words] == ["observations"]
    assert ("seeding", "untried", "failed with the same error as in 'observations'") in [
        (f.name, f.verdict, f.words) for f in tried
    ]
    assert any(advice in f.words for f in findings if f.name == "API")


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


class HalfOpen(Complete):
    action_high = np.full_like(Line.action_high, np.inf)


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
        (HalfOpen, "limits", "warning", "actions have no finite limits"),
        (functools.partial(Faulty, "shape", 5), "observations", "error", "shapes change"),
        (functools.partial(Faulty, "nan_obs", 5), "observations", "error", "NaN"),
        (functools.partial(Faulty, "crash", 5), "observations", "error", "the simulator is gone"),
    ],
)
def test_what_is_wrong_is_named(make, name, verdict, words):
    found = verdicts(make)[name]
    assert found[0] == verdict and words in found[1]


class Pair:
    """Two agents: 'a' leaves after three steps, 'b' after five; ``fault`` breaks a contract."""

    agents, name, action_dim, parallel = ("a", "b"), "pair", 2, None
    action_low, action_high = np.full(2, -np.inf), np.full(2, np.inf)

    def __init__(self, fault=""):
        self.fault, self.episodes, self.acted = fault, 0, []
        if fault == "limits":
            self.action_high = self.action_low

    def seen(self):
        random = np.random if self.fault == "unseeded" else self.random
        lasts = self.fault == "lasting" and self.episodes > 2
        obs = {"x": random.normal(size=2) + 1e-4 * lasts * self.episodes}
        if self.steps == {"nan": 2, "late": 5}.get(self.fault):
            obs["x"][0] = np.nan
        return {**obs, "y": np.zeros(1)} if self.fault == "keys" and self.steps == 2 else obs

    def reset(self, *, seed=None):
        self.random, self.steps = np.random.default_rng(seed), 0
        self.episodes += 1
        return [self.seen(), self.seen()], {}

    def step(self, actions):
        assert actions.shape == (2, 2) and np.abs(actions).max() <= 1
        self.acted.append(actions)
        self.steps += 1
        stays = 10**6 if self.fault == "endless" else 0
        outcomes = []
        for end in (3 + stays, 5 + stays):
            gone = self.steps > end and not (self.fault == "returns" and self.steps == 5)
            gone |= self.fault == "leaves" and end == 5 and self.steps > 1
            reward = np.inf if self.fault == "reward" else 0.0
            over = self.steps == end
            outcome = (self.seen(), reward, over and end == 3, over and end == 5, {})
            outcomes.append(None if gone else outcome)
        return outcomes

    def close(self):
        pass


@pytest.mark.parametrize(
    ("fault", "name", "verdict", "words"),
    [
        ("", "agents", "ok", "a, b; actions of 2 numbers"),
        ("", "observations", "ok", "x (2,)"),
        ("", "seeding", "ok", "a seed gives one episode"),
        ("", "episode end", "ok", "all agents left within 5 random steps"),
        ("limits", "agents", "error", "action_low is not below action_high everywhere"),
        (
            "keys",
            "observations",
            "error",
            "keys or shapes change after the reset, which gave {'x': (2,)}",
        ),
        ("keys", "seeding", "untried", "because of 'observations'"),
        ("nan", "observations", "error", "['x'] contains NaN or inf"),
        ("late", "observations", "error", "['x'] contains NaN or inf"),
        ("reward", "observations", "error", "the reward contains NaN or inf"),
        ("reward", "episode end", "untried", "because of 'observations'"),
        ("unseeded", "seeding", "error", "the same seed and actions gave two different episodes"),
        ("lasting", "seeding", "error", "an episode depends on the previous episode: reset"),
        ("returns", "episode end", "error", "after 5 steps agent 'a' acts after its end"),
        (
            "leaves",
            "episode end",
            "error",
            "after 2 steps agent 'b' is gone, but was not terminated",
        ),
        (
            "endless",
            "episode end",
            "ok",
            "no end within 40 random steps: train.online.horizon cuts",
        ),
    ],
)
def test_contracts_of_several_agents(monkeypatch, fault, name, verdict, words):
    monkeypatch.setattr("pettingzoo.test.parallel_api_test", lambda env, num_cycles: None)
    found = {f.name: f for f in check_env(lambda: Pair(fault), {"type": 1}, steps=40)}
    assert found["made"].words == "pair, actions of 2 numbers"
    assert found["pettingzoo's checker"].words == "no complaint"
    assert found[name].verdict == verdict and found[name].words.startswith(words)


@pytest.mark.parametrize("words", ["a bad reward", ""])
def test_pettingzoos_test_is_named(monkeypatch, words):
    def test(env, num_cycles):
        assert num_cycles == 100
        warnings.warn("odd\nand more", stacklevel=1)
        if fails:
            raise AssertionError(words)

    monkeypatch.setattr("pettingzoo.test.parallel_api_test", test)
    wanted = words or "an assertion of PettingZoo's test failed"
    for fails in (True, False):
        verdict, said = ("error", wanted) if fails else ("ok", "odd")
        found = {f.name: f for f in check_env(Pair, {"type": 1})}["pettingzoo's checker"]
        assert (found.verdict, found.words) == (verdict, said)


def test_an_environment_that_cannot_be_made():
    def make():
        raise EnvError("no such task")

    (found,) = check_env(make, {"type": 1})
    assert (found.name, found.verdict, found.words) == ("made", "error", "no such task")
