"""Episodes in a world and with a policy of a few lines: when they end, what is tried again, what does not fit."""

from types import SimpleNamespace as Words

import numpy as np
import pytest

from imitate.errors import EnvError, NotFiniteError, UserError
from imitate.evaluate import episodes as module
from imitate.evaluate.episodes import EpisodeRunner, check_fit, describe_error, goal_of, play_team
from imitate.evaluate.named_rewards import RewardSpec
from imitate.evaluate.settings import EpisodePlan, EvalSettings
from imitate.system.text import ACTION_MASK
from tests.refusals import refused


class World:
    """Counts the steps; the reward is the action. ``at`` names the step at which something happens."""

    name, action_dim = "world", 1
    action_low, action_high = np.array([2.0]), np.array([4.0])

    def __init__(self, made):
        self.made, self.closed, self.seeds = made, 0, []

    @property
    def at(self):
        return self.made.at

    def reset(self, *, seed):
        self.count = 0
        self.seeds.append(seed)
        return {"s": np.zeros(1)}, {}

    def step(self, action):
        self.count += 1
        if self.at.get("fails", [])[:1] == [self.count]:
            del self.at["fails"][0]
            raise self.at["error"]
        ends = (self.at.get(name) == self.count for name in ("terminated", "truncated"))
        return {"s": np.full(1, float(self.count))}, float(action[0]), *ends, {"c": 0.5}

    def is_success(self):
        if "success" not in self.at:
            return {"task": None}
        return {"task": self.at["success"] == self.count}

    def close(self):
        self.closed += 1


class Policy:
    obs_keys, goal_keys, raw_shapes, rename, control_freq = ("s",), (), {"s": (1,)}, {}, None
    algo = Words(preprocess=Words(actions=Words(sent_dim=1)))

    def __init__(self):
        self.began, self.rewards, self.checked = [], [], []

    def start_episode(self, lang=None):
        self.began.append(lang)

    def observe(self, reward):
        self.rewards.append(reward)

    def check(self, obs):
        self.checked.append(obs["s"].tolist())

    def __call__(self, obs, goal):
        assert goal is None
        return np.array([1.5])


@pytest.fixture
def play(monkeypatch):
    made = Words(worlds=[], policy=Policy(), runner=EpisodeRunner(), cannot_render=None)
    made.runner.use_policy(made.policy)

    def make_env(meta, *, obs_keys, render, camera_size, team):
        assert (obs_keys, team) == (("s",), True)
        if render and made.cannot_render is not None:
            raise made.cannot_render
        made.worlds.append(World(made))
        return made.worlds[-1]

    monkeypatch.setattr(module, "make_env", make_env)

    def run(at=(), index=2, meta=None, named=(), on_frames=None, **settings):
        made.at = dict(at)
        meta = {"env_name": "E", "type": 2, "lang": "go", **(meta or {})}
        words = {"named": named, "shown": 9}
        plan = EpisodePlan(None, meta, "cpu", EvalSettings(seed=10, **settings), 4, None, **words)
        made.episode = made.runner.play(plan, index, on_frames)
        return made

    return run


@pytest.mark.parametrize(
    ("at", "settings", "length", "success", "at_end"),
    [
        ({}, {}, 4, None, None),
        ({"success": 9}, {}, 4, False, False),
        ({"success": 2}, {}, 2, True, True),
        ({"success": 2}, {"terminate_on_success": False}, 4, True, False),
        ({"success": 4}, {"terminate_on_success": False}, 4, True, True),
        ({"terminated": 3}, {}, 3, None, None),
        ({"truncated": 1, "success": 9}, {}, 1, False, False),
    ],
)
def test_an_episode_ends(play, at, settings, length, success, at_end):
    made = play(at, **settings)
    found = made.episode
    assert (found.index, found.seed, found.length) == (2, 12, length)
    assert (found.success, found.success_at_end) == (success, at_end)
    assert (found.episode_return, found.frames, found.rewards) == (1.5 * length, 0, None)
    assert (found.error, found.first_error, found.render_error) == (None, None, None)
    assert made.policy.rewards == [1.5] * length and made.policy.began == ["go"]
    assert made.policy.checked == ([[float(length)]] if success else [])
    assert made.worlds[0].seeds == [12]


def test_named_rewards(play):
    named = (RewardSpec("all", "reward"), RewardSpec("c", "info:c"))
    assert play(named=named).episode.rewards == {"all": 6.0, "c": 2.0}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no contact"), "ValueError: no contact"),
        (SystemExit(3), "the environment or the policy called sys.exit(3)"),
        (NotFiniteError("'s' is nan", (True,)), "'s' is nan"),
    ],
)
def test_an_episode_that_fails_is_tried_twice(play, error, words):
    made = play({"fails": [2], "error": error})
    assert words in made.episode.first_error and made.episode.length == 4
    assert [world.closed for world in made.worlds] == [1, 0]
    made = play({"fails": [2, 1], "error": error})
    assert words in made.episode.error and made.episode.first_error is None
    assert (made.episode.success, made.episode.length) == (False, 0)


def test_errors_of_the_user_end_the_evaluation(play):
    with refused("no such robot", error=UserError):
        play({"fails": [1], "error": UserError("no such robot")})
    assert (
        describe_error(SystemExit("bye")) == "the environment or the policy called sys.exit('bye')"
    )


def test_random_actions_are_those_of_the_seed(play):
    returns = [play(epsilon=1.0, index=index).episode.episode_return for index in (2, 3, 2)]
    dice = np.random.default_rng(12)
    expected = 0.0
    for _ in range(4):
        assert dice.random() < 1.0
        expected += 2.0 + 2.0 * dice.random()
    assert returns[0] == returns[2] == pytest.approx(expected) != returns[1]
    assert play(epsilon=1e-9).episode.episode_return == 6.0


def test_a_random_choice_is_one_that_is_allowed(play, monkeypatch):
    monkeypatch.setattr(World, "num_choices", 3, raising=False)
    monkeypatch.setattr(World, "action_dim", 3)
    for name in ("action_low", "action_high"):
        monkeypatch.setattr(World, name, np.full(3, float(name == "action_high")))
    monkeypatch.setattr(Policy, "algo", Words(preprocess=Words(actions=Words(sent_dim=3))))
    taken, step, reset = [], World.step, World.reset

    def masked(self, action):
        taken.append(action.tolist())
        obs, *rest = step(self, action)
        return {**obs, ACTION_MASK: np.array([1, 0, 1])}, *rest

    def begun(self, *, seed):
        obs, info = reset(self, seed=seed)
        return {**obs, ACTION_MASK: np.array([0, 1, 0])}, info

    monkeypatch.setattr(World, "step", masked)
    monkeypatch.setattr(World, "reset", begun)
    play(epsilon=1.0)
    assert taken[0] == [0.0, 1.0, 0.0]
    assert all(action in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]) for action in taken[1:])


def test_an_environment_is_kept_until_another_is_needed(play):
    for meta in ({}, {}, {"env_kwargs": {"size": 2}}):
        made = play(meta=meta)
    assert [world.closed for world in made.worlds] == [1, 0]
    assert made.worlds[0].seeds == [12, 12]
    made.runner.close()
    made.runner.close()
    assert [world.closed for world in made.worlds] == [1, 1]


def test_without_a_picture_an_episode_is_played_all_the_same(play):
    made = play()
    made.cannot_render = ImportError("no OpenGL")
    made = play(on_frames=lambda *frames: None)
    assert made.episode.render_error.startswith("ImportError: no OpenGL")
    assert made.episode.length == 4 and len(made.worlds) == 1
    made.cannot_render = EnvError("no camera")
    assert play(on_frames=lambda *f: None, meta={"a": 1}).episode.render_error == "no camera"
    made.cannot_render = None
    assert play(on_frames=lambda *f: None, meta={"a": 1}).episode.render_error == "no camera"


def test_a_policy_is_loaded_once():
    loaded, runner = [], EpisodeRunner()

    def source(key):
        return Words(key=key, load=lambda device: loaded.append((key, device)))

    for key, device in (("a", "cpu"), ("a", "cpu"), ("b", "cpu"), ("b", "meta"), ("a", "cpu")):
        runner.load(Words(policy=source(key), device=device))
    assert loaded == [("a", "cpu"), ("b", "cpu"), ("b", "meta"), ("a", "cpu")]


@pytest.mark.parametrize(
    ("world", "policy", "obs", "words"),
    [
        ({}, {}, {"s": 0.0}, "gives observation 's' of shape (), but the checkpoint takes (1,)"),
        ({}, {}, {"z": [0.0]}, "gives no observation 's', but the checkpoint takes one of shape (1,)"),
        ({}, {"rename": {"s": "own"}}, {}, "--rename NEW=own"),
        ({"action_dim": 2}, {}, {"s": [0.0]}, "takes actions of 2 numbers, but the checkpoint gives 1"),
        ({"rate_hz": 10.0}, {"control_freq": 20.0}, {"s": [0.0]}, "the rate is 10 Hz"),
    ],
)  # fmt: skip
def test_policies_that_do_not_fit(world, policy, obs, words):
    def with_values(thing, values):
        for name, value in values.items():
            setattr(thing, name, value)
        return thing

    given = with_values(Policy(), policy), with_values(World(None), world)
    with refused(words, error=UserError):
        check_fit(*given, obs)
    check_fit(Policy(), World(None), {"s": [0.0], "more": 1})


def test_goals():
    policy = Policy()
    assert goal_of(policy, World(None)) is None
    policy.goal_keys = ("g",)
    assert goal_of(policy, Words(get_goal=lambda: {"g": 1})) == {"g": 1}
    with refused("environment 'world' has no get_goal()|goal keys g", error=EnvError):
        goal_of(policy, World(None))
    with refused("the policy takes goals (g)", error=EnvError):
        play_team(policy, None, [], horizon=1, terminate_on_success=True, show=print)


def test_a_team_must_fit_the_policy(play, monkeypatch):
    monkeypatch.setattr(World, "agents", ("a", "b"), raising=False)
    reset = World.reset
    monkeypatch.setattr(World, "reset", lambda self, *, seed: ([reset(self, seed=seed)[0]] * 2, {}))
    monkeypatch.setattr(World, "action_dim", 2)
    with refused("takes actions of 2 numbers, but the checkpoint gives 1", error=EnvError):
        play()


def test_a_team_ends_when_all_have_succeeded_and_absent_agents_may_do_anything():
    seen = []

    class Team:
        agents, count = ("a", "b"), 0

        def step(self, actions):
            self.count += 1
            obs = {"s": np.zeros(1), ACTION_MASK: np.array([0, 1])}
            first = None if self.count > 1 else (obs, 1.0, True, False, {"success": True})
            return [first, (obs, 2.0, False, False, {"success": self.count == 2})]

    class Batched(Policy):
        def __call__(self, obs, batched_ob):
            seen.append(obs[ACTION_MASK].tolist())
            return np.zeros((2, 1))

        def observe(self, rewards):
            self.rewards.append(rewards.tolist())

    first = [{"s": np.zeros(1), ACTION_MASK: np.array([1, 0])}] * 2
    for terminate, length in ((True, 2), (False, 5)):
        policy = Batched()
        words = {"horizon": 5, "terminate_on_success": terminate, "show": lambda step: None}
        played = play_team(policy, Team(), first, **words)
        assert (played.length, played.over) == (length, terminate)
        assert (played.success, played.at_end, played.total) == (True, terminate, 1 + 2.0 * length)
        assert policy.rewards[:2] == [[1.0, 2.0], [0.0, 2.0]]
        results = {"a": {"return": 1.0, "success": True}}
        assert played.results() == {**results, "b": {"return": 2.0 * length, "success": True}}
    assert seen[:2] == [[[1, 0], [1, 0]], [[1, 1], [0, 1]]]
