"""Supervision in exact values: defaults, limits, seeds and the names of experts."""

import numpy as np
import pytest
import torch

from imitate.envs.experts import Style
from imitate.errors import ConfigError
from imitate.train.interactive import supervision as module
from imitate.train.interactive.supervision import (
    CorrectionsOf,
    DiscardedError,
    Labels,
    LabelsOf,
    PolicyExpert,
    ScriptedExpert,
    TakesOver,
    Vigilant,
    Word,
    imported,
    named_expert,
    supervised_episode,
)
from tests.refusals import refused


class Arm:
    """The reward is 2 at each step; ``infos`` by step."""

    def __init__(self, infos=(), end=None):
        self.infos, self.end = dict(infos), end

    def reset(self, *, seed):
        self.step_number, self.seed = -1, seed
        return {"t": np.zeros(1)}, {}

    def get_state(self):
        return {"states": np.full(2, self.step_number), "model": "", "ep_meta": "{}"}

    def step(self, action):
        self.step_number += 1
        ends = self.step_number == 2
        return (
            {"t": np.ones(1)},
            2.0,
            ends and self.end == "terminated",
            ends and self.end == "truncated",
            self.infos.get(self.step_number, {}),
        )


class Drawing:
    """A policy that draws its actions; ``uncertainty_rank`` (1,)."""

    obs_keys, uncertainty_rank = ("t",), torch.tensor([0.75])
    cuts = 0

    def start_episode(self):
        self.cuts = 0

    def cut_plan(self):
        self.cuts += 1

    def observe(self, reward):
        assert reward == 2.0

    def __call__(self, obs):
        return torch.rand(1).double().numpy()


class Watch:
    """Remembers the seed and the ranks."""

    def start_episode(self, seed):
        self.seed, self.ranks = seed, []

    def watch(self, obs, wanted, rank):
        self.ranks.append(rank)
        return Word()


def play(env, **how):
    watch = Watch()
    made = supervised_episode(env, Drawing(), watch, **{"seed": 4, "horizon": 20, **how})
    return made, watch


def test_defaults_of_an_episode():
    made, watch = play(Arm({1: {"success": True}, 3: {"success": True}}))
    assert len(made.actions) == 1 + 1 + 8  # steps before the success, its own, and those after it
    torch.manual_seed(4)
    drawn = torch.rand(10, 1).double()
    np.testing.assert_array_equal(made.actions, drawn)
    assert (watch.seed, watch.ranks) == (4, [0.75] * 10)
    assert made.attrs == {"ep_meta": "{}", "success": True, "round": 0}
    assert made.states[:, 0].tolist() == list(range(-1, 9))
    assert made.terminals.tolist() == [n in (1, 3) for n in range(10)]
    assert made.timeouts.tolist() == [n == 9 for n in range(10)]


@pytest.mark.parametrize(
    ("env", "how", "length", "terminal"),
    [
        (Arm(), {"horizon": 1}, 1, False),
        (Arm(), {"horizon": 2}, 2, False),
        (Arm(end="terminated"), {}, 3, True),
        (Arm(end="truncated"), {}, 3, False),
    ],
)
def test_episodes_without_words_about_success(env, how, length, terminal):
    made, _ = play(env, states=False, round_number=6, **how)
    assert made.attrs == {"round": 6} and made.states is None
    assert made.terminals.tolist() == [False] * (length - 1) + [terminal]
    assert made.timeouts.tolist() == [False] * (length - 1) + [not terminal]


def test_executed_and_discarded():
    """An environment that clips the action determines what is learned where there is no label."""
    made, _ = play(Arm({0: {"executed_action": [5]}}), horizon=2)
    assert made.actions[0] == made.steps["executed_actions"][0] == 5.0
    assert made.actions[1] == made.steps["policy_actions"][1] != 5.0
    assert made.steps["labelled"].tolist() == made.steps["interventions"].tolist() == [0, 0]
    with pytest.raises(DiscardedError):
        play(Arm({1: {"discarded": True}}))


def test_the_seed_of_labels():
    labels = Labels(lambda obs: [7.0], 0.5)
    labels.start_episode(5)
    random = np.random.default_rng([5, 1])
    taken = [labels.watch({}, np.zeros((1, 1))) for _ in range(20)]
    assert [word.takes_over for word in taken] == [random.random() < 0.5 for _ in range(20)]
    assert taken[0].label.shape == (1, 1)


def test_defaults_of_a_vigilant_person():
    """A difference of 0.5 in the worst number is right; five wrong ones take over, five right ones let go."""
    person = Vigilant(lambda obs: [0.0, 0.0])
    person.start_episode(0)
    wanted = [0.5] * 6 + [-0.51] * 4 + [0.5] + [0.51] * 5 + [-0.5] * 4 + [0.51] + [0.5] * 6
    held = [person({}, np.array([0.0, w])) is not None for w in wanted]
    assert np.flatnonzero(held).tolist() == list(range(15, 25))
    person({}, np.ones(2))
    person.start_episode(0)  # forgets the wrong step
    assert [person({}, np.ones(2)) is None for _ in range(5)] == [True] * 4 + [False]


def test_habits_of_the_scripted_expert(monkeypatch):
    seen = []
    monkeypatch.setattr(
        module, "find_expert", lambda name: lambda style: seen.append((name, style))
    )
    expert = ScriptedExpert("Lift")
    expert.start_episode(3)
    habits = {"grasp_offset_m": [0.0] * 3, "detour_m": [0.0] * 2, "speed": 0.65, "hover_m": 0.075}
    for name, style in seen:
        assert name == "Lift" and isinstance(style, Style)
        assert {key: np.array(getattr(style, key)).tolist() for key in habits} == habits
    assert len(seen) == 2


def test_an_expert_policy_is_reset_and_sees_each_step():
    calls = []

    class Policy:
        def __call__(self, obs):
            calls.append(obs)
            return np.ones(1)

        def start_episode(self):
            calls.append("start")

        def cut_plan(self):
            calls.append("cut")

    labels = Labels(PolicyExpert(Policy()), 1.0, every=2)
    labels.start_episode(0)
    assert labels.watch("a", np.zeros(1)) == (np.ones(1), True)
    assert labels.watch("b", np.zeros(1)) == (None, False)
    assert calls == ["start", "cut", "a", "b"]


class Constant:
    """An expert that is a class."""

    def __call__(self, obs):
        return np.full(1, 3.0)


def constant(obs):
    return np.full(1, 4.0)


def test_names_of_experts(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "find_expert", lambda name: lambda style: name)
    assert isinstance(named_expert("scripted", "Lift"), ScriptedExpert)
    monkeypatch.setattr(module, "policy_from_checkpoint", lambda **words: (words, {}))
    (tmp_path / "a.pth").touch()
    assert isinstance(named_expert(str(tmp_path / "a.pth"), "Lift"), PolicyExpert)
    assert named_expert(f"{__name__}:constant", "Lift")({}) == 4.0
    assert named_expert(f"{__name__}:Constant", "Lift")({}) == 3.0
    with refused("--hand: 'no.module:f' is neither a file nor", error=ConfigError):
        imported("no.module:f", "--hand")
    labels = LabelsOf(f"{__name__}:constant", "Lift", beta=1.0, every=2, ask_above=0.5)(3)
    ranks = [0.6, 0.6, 0.4, 0.6, 0.5]
    labels.start_episode(0)
    words = [labels.watch({}, np.zeros(1), rank) for rank in ranks]
    assert [word.label is not None for word in words] == [True, False, False, False, True]
    corrections = CorrectionsOf(f"{__name__}:constant", "Lift")(0)
    assert isinstance(corrections, TakesOver)
    corrections.start_episode(0)
    assert [corrections.watch({}, np.zeros(1)).takes_over for _ in range(5)] == [False] * 4 + [True]
