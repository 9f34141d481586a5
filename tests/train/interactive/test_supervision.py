"""The supervisor: which of both acts, which actions are recorded, whose plan is cut."""

import numpy as np
import pytest
import torch

from imitate.errors import ConfigError
from imitate.policy.checkpoint import checkpoint_dict
from imitate.policy.rollout_policy import RolloutPolicy
from imitate.train.interactive.supervision import (
    Labels,
    LabelsOf,
    PolicyExpert,
    ScriptedExpert,
    TakesOver,
    Vigilant,
    Word,
    supervised_episode,
)
from tests.tiny import tiny_algo


class Counter:
    """The observation is the number of the step; success at ``solved``, the end at ``ends``."""

    def __init__(self, solved=100, ends=100):
        self.solved, self.ends, self.taken = solved, ends, []

    def reset(self, *, seed=None):
        self.taken = []
        return self.obs(), {}

    def obs(self):
        return {"t": np.array([float(len(self.taken))]), "extra": np.zeros(3)}

    def step(self, action):
        self.taken.append(float(action[0]))
        number = len(self.taken)
        return (
            self.obs(),
            float(number),
            number >= self.ends,
            False,
            {"success": number >= self.solved},
        )

    def get_state(self):
        return {"states": np.full(2, len(self.taken)), "model": "<xml/>"}


class Planner:
    """Plans four actions, 10 * (step of the plan) + place in it."""

    obs_keys = ("t",)
    uncertainty_rank = None

    def start_episode(self):
        self.cut_plan()
        self.seen, self.rewards = [], []

    def cut_plan(self):
        self.plan = []

    def observe(self, reward):
        self.rewards.append(reward)

    def __call__(self, obs):
        now = obs["t"][0]
        self.seen.append(now)
        if not self.plan:
            self.plan = [10 * now + place for place in range(4)]
        return np.array([self.plan.pop(0)])


class Script:
    """Words by step."""

    def __init__(self, words):
        self.words = words

    def start_episode(self, seed):
        self.step = -1

    def watch(self, obs, wanted, rank):
        self.step += 1
        return self.words.get(self.step, Word())


def run(env, words, **how):
    policy = Planner()
    settings = {"seed": 0, "horizon": 8, "states": False, **how}
    return policy, supervised_episode(env, policy, Script(words), **settings)


def test_a_take_over_cuts_the_running_chunk():
    env = Counter()
    by_hand = Word(np.array([-1.0]), takes_over=True)
    policy, episode = run(env, {2: by_hand, 3: by_hand})
    # Steps 0 and 1 of the plan of step 0; by hand; from step 4 on a new plan, not the rest of the old one.
    assert env.taken == [0, 1, -1, -1, 40, 41, 42, 43]
    assert policy.seen == [0, 1, 2, 3, 4, 5, 6, 7]
    np.testing.assert_array_equal(episode.actions[:, 0], env.taken)
    np.testing.assert_array_equal(episode.steps["executed_actions"][:, 0], env.taken)
    # What it would have done: at step 2 the rest of its plan, at step 3 a new one.
    np.testing.assert_array_equal(
        episode.steps["policy_actions"][:, 0], [0, 1, 2, 30, 40, 41, 42, 43]
    )
    np.testing.assert_array_equal(episode.steps["interventions"], [0, 0, 1, 1, 0, 0, 0, 0])


def test_labels_that_are_not_executed_are_what_is_learned():
    env = Counter()
    words = {step: Word(np.array([100.0 + step])) for step in range(8)}
    _, episode = run(env, words, round_number=3)
    assert env.taken == [0, 1, 2, 3, 40, 41, 42, 43]
    np.testing.assert_array_equal(episode.actions[:, 0], 100 + np.arange(8))
    np.testing.assert_array_equal(episode.steps["executed_actions"][:, 0], env.taken)
    assert episode.steps["interventions"].sum() == 0
    np.testing.assert_array_equal(episode.steps["round"], [3] * 8)
    assert episode.attrs["round"] == 3


def test_a_person_at_the_robot_cuts_the_plan_and_the_executed_action_is_the_label():
    class Touched(Counter):
        def step(self, action):
            *outcome, info = super().step(action)
            word = {"intervened": True, "executed_action": [-5.0]} if len(self.taken) == 2 else {}
            return *outcome, {**info, **word}

    policy, episode = run(Touched(), {}, horizon=4)
    # the plan of step 0 ends with the person's step 1
    np.testing.assert_array_equal(episode.actions[:, 0], [0, -5, 20, 21])
    np.testing.assert_array_equal(episode.steps["policy_actions"][:, 0], [0, 1, 20, 21])
    np.testing.assert_array_equal(episode.steps["interventions"], [0, 1, 0, 0])
    np.testing.assert_array_equal(episode.steps["labelled"], [0, 1, 0, 0])


@pytest.mark.parametrize(
    ("env", "length", "terminal", "success"),
    [
        (Counter(), 8, False, False),
        (Counter(solved=3), 5, True, True),  # two steps more
        (Counter(solved=7), 8, True, True),  # the clock is first
        (Counter(ends=4), 4, True, False),
    ],
)
def test_ends(env, length, terminal, success):
    policy, episode = run(env, {}, hold_steps=2)
    assert len(episode.actions) == length
    assert (bool(episode.terminals[-1]), bool(episode.timeouts[-1])) == (terminal, not terminal)
    assert episode.attrs["success"] is success
    np.testing.assert_array_equal(episode.rewards, np.arange(1, length + 1))
    assert policy.rewards == list(episode.rewards)
    assert set(episode.obs) == {"t"}
    np.testing.assert_array_equal(episode.obs["t"][:, 0], np.arange(length))


def test_states_are_those_before_the_actions():
    _, episode = run(Counter(), {}, states=True, horizon=3)
    np.testing.assert_array_equal(episode.states[:, 0], [0, 1, 2])
    assert episode.attrs["model_file"] == "<xml/>"


@pytest.mark.parametrize(("beta", "share"), [(0.0, 0.0), (1.0, 1.0), (0.3, 0.3)])
def test_the_expert_labels_each_step_and_acts_in_some(beta, share):
    labels = Labels(lambda obs: [7.0], beta)
    taken = []
    for _ in range(2):
        labels.start_episode(5)
        words = [labels.watch({}, np.zeros(1)) for _ in range(2000)]
        assert all(word.label.tolist() == [7.0] for word in words)
        taken.append([word.takes_over for word in words])
    assert taken[0] == taken[1]  # the seed fixes who acts
    assert np.mean(taken[0]) == pytest.approx(share, abs=0.03)


def test_an_expert_that_is_asked_now_and_then_sees_all_steps_and_acts_in_none_between():
    asked, followed = [], []

    class Asked:
        def follow(self, obs):
            followed.append(obs["t"])

        def __call__(self, obs):
            asked.append(obs["t"])
            return [7.0]

    labels = Labels(Asked(), beta=1.0, every=3)
    for _ in range(2):  # each episode begins with a label
        labels.start_episode(0)
        words = [labels.watch({"t": t}, np.zeros(1)) for t in range(8)]
        assert [word.label is not None for word in words] == [t % 3 == 0 for t in range(8)]
        assert [word.takes_over for word in words] == [t % 3 == 0 for t in range(8)]
    assert asked == [0, 3, 6] * 2
    assert followed == [1, 2, 4, 5, 7] * 2


def test_an_unsure_policy_asks():
    labels = Labels(lambda obs: [7.0], beta=1.0, ask_above=0.9)
    labels.start_episode(0)
    words = [labels.watch({}, np.zeros(1), rank) for rank in (0.0, 0.89, 0.9, 1.0)]
    assert [word.label is not None for word in words] == [False, False, True, True]
    assert [word.takes_over for word in words] == [False, False, True, True]
    sparse = Labels(lambda obs: [7.0], beta=1.0, every=3, ask_above=0.9)
    sparse.start_episode(0)
    ranks = (1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0)
    words = [sparse.watch({}, np.zeros(1), rank) for rank in ranks]
    assert [n for n, word in enumerate(words) if word.label is not None] == [0, 6]
    with pytest.raises(ConfigError, match="has no uncertainties"):
        labels.watch({}, np.zeros(1))


def test_what_has_a_label_is_recorded():
    _, episode = run(Counter(), {step: Word(np.array([100.0])) for step in (0, 4)})
    np.testing.assert_array_equal(episode.steps["labelled"], [1, 0, 0, 0, 1, 0, 0, 0])
    np.testing.assert_array_equal(episode.actions[:, 0], [100, 1, 2, 3, 100, 41, 42, 43])


def test_a_person_has_an_opinion_only_while_acting():
    told = []

    class Hand:
        def start_episode(self, seed):
            told.append(seed)

        def __call__(self, obs, wanted):
            return None if obs["t"] < 2 else [wanted[0] + 1]

    who = TakesOver(Hand())
    who.start_episode(9)
    assert told == [9]
    assert who.watch({"t": 0}, np.zeros(1)) == (None, False)
    word = who.watch({"t": 2}, np.zeros(1))
    assert (word.label.tolist(), word.takes_over) == ([1.0], True)


def test_a_vigilant_person_waits_before_taking_over_and_before_letting_go():
    who = Vigilant(lambda obs: [0.0], tolerance=0.5, patience=2)
    who.start_episode(0)
    wanted = [1, 0, 1, 1, 1, 0, 1, 0, 0, 0]
    held = [who({}, np.array([float(x)])) is not None for x in wanted]
    assert held == [False, False, False, True, True, True, True, True, False, False]


CHUNK = {"chunk": {"size": 4, "execute": 4}}
BC = {"chunk": {"enabled": True, "size": 4, "execute": 4}}
FOUR = {"horizon": {"observation_horizon": 1, "prediction_horizon": 4, "action_horizon": 4}}
PLANNERS = {"bc": BC, "act": CHUNK, "vq_bet": CHUNK, "flow_policy": FOUR, "diffusion_policy": FOUR}


def chunk_policy():
    train = {"seq_length": 4, "frame_stack": 2}
    return RolloutPolicy(tiny_algo(obs={"t": 1}, train=train, algo=BC))


def test_a_cut_plan_is_forgotten_and_what_was_seen_is_not():
    def acted(cut):
        policy = chunk_policy()
        policy.start_episode()
        policy.cut_plan()  # nothing to cut yet
        policy({"t": [1.0]})
        if cut:
            policy.cut_plan()
        return policy({"t": [2.0]})

    fresh = chunk_policy()
    fresh.start_episode()
    alone = fresh({"t": [2.0]})  # without the frame before
    planned = chunk_policy()
    planned.start_episode()
    planned({"t": [1.0]})
    rest = planned.planned_actions()[0, 1]
    np.testing.assert_allclose(acted(cut=False), rest)
    assert not np.allclose(acted(cut=True), rest)
    assert not np.allclose(acted(cut=True), alone)


def test_an_expert_policy_decides_anew_each_time():
    expert = PolicyExpert(chunk_policy())
    expert.start_episode(0)
    first, again = expert({"t": [1.0]}), expert({"t": [1.0]})
    np.testing.assert_allclose(first, again, atol=1e-6)


def planner(name):
    """An untrained policy that plans four actions from the observation ``t``; ``residual`` is built upon one."""
    section = PLANNERS.get(name, {})
    train = {"frame_stack": 1, **({"seq_length": 4} if section else {})}
    algo = tiny_algo(name, obs={"t": 1}, action=3, train=train, algo=section)
    if name == "residual":
        flow = planner("flow_policy").algo
        ckpt = checkpoint_dict(flow, env_metadata={}, shape_metadata={})
        algo.base.adopt(ckpt, algo.preprocess)
    return RolloutPolicy(algo)


@pytest.mark.parametrize("name", [*PLANNERS, "residual"])
def test_after_a_take_over_every_policy_plans_anew(name):
    """The observation is the step's number whoever acts, so that only the plan can differ."""
    policy, by_hand = planner(name), Word(np.full(3, -1.0), takes_over=True)

    def wanted(words):
        done = supervised_episode(Counter(), policy, Script(words), seed=0, horizon=4, states=False)
        return done.steps["policy_actions"]

    alone, helped = wanted({}), wanted({1: by_hand})
    np.testing.assert_allclose(helped[:2], alone[:2])
    assert not np.allclose(helped[2], alone[2])
    # From step 2 on it is left alone: the rest of the new plan, not a plan at each step.
    again = wanted({1: by_hand, 2: by_hand})
    np.testing.assert_allclose(again[2], helped[2])
    assert not np.allclose(again[3], helped[3])


@pytest.mark.parametrize("name", [*PLANNERS, "residual"])
def test_labels_of_every_expert_that_plans_are_first_actions(name):
    def labels(ask):
        torch.manual_seed(0)
        policy = planner(name)
        policy.start_episode()
        expert = PolicyExpert(policy) if ask else policy
        return [expert({"t": [float(step)]}) for step in range(3)]

    asked, executed = labels(True), labels(False)
    np.testing.assert_allclose(asked[0], executed[0])
    assert not np.allclose(asked[1], executed[1]) and not np.allclose(asked[2], executed[2])


def test_the_scripted_expert_is_made_anew_for_each_episode_and_keeps_its_own_limits(monkeypatch):
    class Counting:
        """Remembers how often it acted, as an expert of a package may."""

        def __init__(self, style):
            self.steps = 0

        def act(self, obs):
            self.steps += 1
            return np.array([2.0, self.steps])

    monkeypatch.setattr("imitate.train.interactive.supervision.find_expert", lambda name: Counting)
    labels = Labels(ScriptedExpert("other_package:Reach-v0"), beta=1.0)
    for _ in range(2):
        labels.start_episode(0)
        taken = [labels.watch({}, np.zeros(2)).label.tolist() for _ in range(2)]
        assert taken == [[2.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize(("number", "acts"), [(0, [True] * 2), (1, [False] * 2)])
def test_by_default_each_step_is_labelled_and_beta_falls_with_the_rounds(monkeypatch, number, acts):
    expert = lambda name, env_name: lambda obs: [7.0]  # noqa: E731
    monkeypatch.setattr("imitate.train.interactive.supervision.named_expert", expert)
    labels = LabelsOf("scripted", "Lift", beta=0.0)(number)
    labels.start_episode(0)
    words = [labels.watch({}, np.zeros(1)) for _ in range(2)]
    assert [word.label.tolist() for word in words] == [[7.0]] * 2
    assert [word.takes_over for word in words] == acts


def test_the_scripted_expert_depends_on_what_it_sees_alone():
    obs = {
        "object": np.array([0.1, 0.0, 0.82, 0, 0, 0, 1, 0, 0, 0]),
        "robot0_eef_pos": np.array([0.0, 0.0, 1.0]),
        "robot0_eef_quat": np.array([1.0, 0, 0, 0]),
        "robot0_gripper_qpos": np.array([0.04, -0.04]),
    }
    first, second = ScriptedExpert("Lift")(obs), ScriptedExpert("Lift")(obs)
    np.testing.assert_array_equal(first, second)
    assert first[0] > 0  # towards the cube
    assert first[2] < 0
    assert first[6] == -1.0  # open
