"""Episodes in lockstep, with environments and a policy of a few lines: who plays which episode, how each ends."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from imitate.envs.vector import HungCopiesError
from imitate.errors import EnvError, NotFiniteError
from imitate.evaluate import lockstep as module
from imitate.evaluate.lockstep import play_lockstep
from imitate.evaluate.named_rewards import RewardSpec
from imitate.evaluate.settings import EpisodePlan, EvalSettings
from imitate.system.processes import MAKE
from tests.refusals import refused


class Copies:
    """The observation counts the steps of an episode; the reward is its seed.

    Args:
        ends: by seed, (step, what): 'terminated', 'truncated', 'success', 'nan', 'nan success', 'hangs', 'hangs once'.
        known: whether ``success`` is reported.
    """

    single_action_space = Box(-1, 1, (1,))
    single_observation_space = Dict({"s": Box(-1, 1, (1,))})
    closed = 0

    def __init__(self, num_envs, ends, known=True):
        self.ends, self.known, self.resets = ends, known, []
        self.seeds, self.steps = np.zeros(num_envs, int), np.zeros(num_envs, int)

    def reset(self, *, seed, options):
        mask = options["reset_mask"]
        self.resets.append([s if m else None for s, m in zip(seed, mask, strict=True)])
        self.seeds[mask], self.steps[mask] = np.array(seed)[mask], 0
        return {"s": self.seen()}, {}

    def what(self):
        ends = [self.ends.get(seed, (0, "")) for seed in self.seeds.tolist()]
        return [w if s == n else "" for (s, w), n in zip(ends, self.steps.tolist(), strict=True)]

    def seen(self):
        bad = np.array([word.startswith("nan") for word in self.what()])
        return np.where(bad, np.nan, self.steps)[:, None].astype(float)

    def step(self, actions):
        self.steps += 1
        words = self.what()
        hung = [n for n, word in enumerate(words) if word.startswith("hangs")]
        for seed in (int(self.seeds[n]) for n in hung if words[n] == "hangs once"):
            del self.ends[seed]
        if hung:
            raise HungCopiesError("E", hung, "took too long")
        happened = {
            name: np.array([word == name for word in words]) for name in ("terminated", "truncated")
        }
        info = {"c": self.steps * 1.0, "_c": self.steps < 3, "word": "x"}
        if self.known:
            info["success"] = np.array(["success" in word for word in words])
        return {"s": self.seen()}, self.seeds * 1.0, *happened.values(), info

    def close(self):
        self.closed += 1


class Policy:
    """Remembers its calls; refuses observations that are not finite."""

    obs_keys, goal_keys, raw_shapes, rename = ("s",), (), {"s": (1,)}, {}
    algo = SimpleNamespace(preprocess=SimpleNamespace(actions=SimpleNamespace(sent_dim=1)))

    def __init__(self):
        self.started, self.rewards, self.seen = [], [], []

    def start_episode(self, lang, mask):
        self.started.append((lang, mask.tolist()))

    def observe(self, rewards):
        self.rewards.append(rewards.tolist())

    def check(self, obs, batched_ob):
        assert batched_ob
        bad = ~np.isfinite(obs["s"][:, 0])
        if bad.any():
            raise NotFiniteError("obs 's' is nan", tuple(bad.tolist()))

    def __call__(self, obs, batched_ob):
        self.check(obs, batched_ob)
        self.seen.append(obs["s"][:, 0].tolist())
        return np.zeros((len(obs["s"]), 1))


@pytest.fixture
def play(monkeypatch):
    made = SimpleNamespace(policy=Policy(), venvs=[], told=[], beats=[], options=[])

    def run(ends=None, known=True, named=(), meta=None, **settings):
        def make(env_meta, num_envs, **options):
            made.venvs.append(Copies(num_envs, ends or {}, known))
            made.options.append(options)
            made.draw = torch.rand(1).item()
            return made.venvs[-1]

        monkeypatch.setattr(module, "make_vector_env", make)
        settings = EvalSettings(**{"episodes": 3, "workers": 2, "seed": 10, **settings})
        meta = {"env_name": "E", "type": 2, "lang": "go", **(meta or {})}
        plan = EpisodePlan(None, meta, "cpu", settings, 4, 7.5, named=named)
        beat = made.beats.append
        made.episodes = play_lockstep(made.policy, plan, made.told.append, beat)
        return made

    return run


def shown(episodes):
    return [(e.index, e.seed, e.success, e.episode_return, e.length) for e in episodes]


def test_each_environment_takes_the_next_episode_when_its_own_ends(play):
    ends = {10: (2, "terminated"), 11: (3, "truncated"), 12: (4, "")}
    made = play(ends)
    expected = [(0, 10, False, 20.0, 2), (1, 11, False, 33.0, 3), (2, 12, False, 48.0, 4)]
    assert shown(made.episodes) == expected and shown(made.told) == expected
    (venv,) = made.venvs
    # the last episode is in the first environment; the second one is idle and starts from the first seed
    resets = [[10, 11], [12, None], [None, 10], [None, 10], [10, None]]
    assert venv.resets == resets and venv.closed == 1
    masks = [mask for _, mask in made.policy.started]
    assert masks == [[seed is not None for seed in seeds] for seeds in resets]
    assert {lang for lang, _ in made.policy.started} == {"go"}
    assert made.policy.seen == [[0, 0], [1, 1], [0, 2], [1, 1], [2, 2], [3, 3]]
    assert made.policy.rewards == [[10, 11]] * 2 + [[12, 11]] + [[12, 10]] * 3
    assert made.beats[:2] == [MAKE, ""] and made.beats[2:] == [""] * 6
    assert made.options[0]["step_timeout_s"] == 7.5 and made.options[0]["obs_keys"] == ("s",)


def test_successes(play):
    ends = {10: (2, "success"), 11: (4, "success")}
    assert shown(play(ends).episodes) == [
        (0, 10, True, 20.0, 2),
        (1, 11, True, 44.0, 4),
        (2, 12, False, 48.0, 4),
    ]
    made = play(ends, terminate_on_success=False)
    found = [(e.success, e.success_at_end, e.length) for e in made.episodes]
    assert found == [(True, False, 4), (True, True, 4), (False, False, 4)]
    assert [e.success for e in play(known=False).episodes] == [None] * 3
    made = play({10: (2, "nan success")}, episodes=1)  # a broken simulator solves nothing
    assert shown(made.episodes) == [(0, 10, False, 0.0, 0)]
    assert made.episodes[0].error == "obs 's' is nan"


def test_episodes_that_are_not_finite_fail_alone(play):
    made = play({10: (1, "nan"), 12: (0, "nan")})
    assert shown(made.episodes) == [
        (0, 10, False, 0.0, 0),
        (1, 11, False, 44.0, 4),
        (2, 12, False, 0.0, 0),
    ]
    assert [e.error is None for e in made.episodes] == [False, True, False]


def test_idle_environments_repeat_the_observation_of_one_that_plays(play):
    made = play({10: (1, "terminated"), 11: (4, "terminated")}, episodes=2)
    assert made.policy.seen == [[0, 0], [1, 1], [2, 2], [3, 3]]
    assert made.venvs[0].resets == [[10, 11], *[[10, None]] * 3, [10, 10]]


def test_the_first_episode_may_be_the_last_to_end(play):
    made = play({11: (1, "terminated")}, episodes=2)
    assert made.policy.seen == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_it_stops_when_there_is_no_hope(play):
    made = play(episodes=6, give_up_after=2)
    assert len(made.told) == 2 and len(made.venvs) == 1
    assert len(play(episodes=1, workers=4).venvs[-1].steps) == 1


def test_environments_that_hang_are_made_again(play):
    made = play({11: (2, "hangs once")})
    assert [len(venv.steps) for venv in made.venvs] == [2, 2]
    assert [venv.closed for venv in made.venvs] == [1, 1]
    assert [e.first_error for e in made.episodes] == [None, "took too long", None]
    assert shown(made.episodes)[1] == (1, 11, False, 44.0, 4)
    made = play({11: (2, "hangs")})
    assert made.episodes[1].error == "environment 'E': took too long, in 2 tries"
    assert [e.error is None for e in made.episodes] == [True, False, True]


def test_named_rewards(play):
    named = (RewardSpec("all", "reward"), RewardSpec("c", "info:c"))
    made = play({10: (2, "terminated"), 11: (4, "terminated")}, named=named, episodes=2)
    assert made.episodes[0].rewards == {"all": 20.0, "c": 3.0}  # 1 + 2
    assert made.episodes[1].rewards == {"all": 44.0}  # steps 3 and 4 report none
    assert play(episodes=1).episodes[0].rewards is None


def test_draws_are_those_of_the_seed_and_leave_no_trace(play):
    torch.manual_seed(0)
    first = torch.rand(3)
    torch.manual_seed(0)
    play(episodes=1)
    assert torch.equal(
        torch.rand(3)[:2], first[1:]
    )  # the test's own draw, and none in the episodes


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"goal_keys": ("g",)}, "environment 'E': mode 'vector' plays no goal-conditioned"),
        ({"raw_shapes": {"s": (2,)}}, "gives observation 's' of shape (1,), but"),
        ({"algo": SimpleNamespace(preprocess=SimpleNamespace(actions=SimpleNamespace(sent_dim=2)))},
         "takes actions of 1 numbers, but the checkpoint gives 2"),
    ],
)  # fmt: skip
def test_policies_that_do_not_fit(play, monkeypatch, change, words):
    for name, value in change.items():
        monkeypatch.setattr(Policy, name, value)
    with refused(words, error=EnvError):
        play()
