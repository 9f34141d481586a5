"""Wrappers of environments, as env_args name them."""

import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from imitate.cli.robot.policies import SkilledPolicy
from imitate.config.online import WrapperConfig
from imitate.deploy.schema import ObservedKey, Schema
from imitate.envs import make, make_env
from imitate.envs.make import Repeated, can_be_made, check_description, is_real, is_robot, is_team
from imitate.errors import ConfigError, EnvError, UserError
from imitate.evaluate.environments import named_env
from imitate.train.online.setup import online_env_meta
from tests.demo_files import episode, write_demos
from tests.refusals import refused
from tests.tiny import tiny_algo, tiny_config

PENDULUM = {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}


def wrapped(*wrappers, keys=None):
    return make_env({**PENDULUM, "wrappers": list(wrappers)}, obs_keys=keys)


def test_skills_cycle_with_the_seed_and_last_for_an_episode():
    env = wrapped({"type": "skills", "num": 3}, keys=["flat", "skill"])
    drawn = [env.reset(seed=seed)[0]["skill"].tolist() for seed in (3, 4, 5, 6)]
    assert drawn == [[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]]
    obs = env.step(np.zeros(1))[0]
    assert obs["skill"].tolist() == [1, 0, 0] and obs["flat"].shape == (3,)
    assert len({int(env.reset()[0]["skill"].argmax()) for _ in range(20)}) == 3


def test_continuous_skills_are_on_the_sphere_and_follow_the_seed():
    env = wrapped({"type": "skills", "num": 4, "continuous": True})
    first, again, other = (env.reset(seed=seed)[0]["skill"] for seed in (1, 1, 2))
    assert np.linalg.norm(first) == pytest.approx(1.0)
    assert (first == again).all() and (first != other).all()


def test_the_previous_action_is_zeros_at_a_start():
    env = wrapped({"type": "previous_action"})
    assert env.reset(seed=0)[0]["previous_action"].tolist() == [0, 0]
    assert env.step(np.array([1.5]))[0]["previous_action"].tolist() == [1.5, 1]
    assert env.reset()[0]["previous_action"].tolist() == [0, 0]


class Counting:
    """Rewards 1, 2, 3 ..., and an end after the fourth step."""

    name, action_dim, num_choices = "counting", 1, 0
    action_low, action_high = np.array([-2.0]), np.array([2.0])

    def reset(self, *, seed=None):
        self.taken = []
        return {"s": np.zeros(1)}, {}

    def step(self, action):
        self.taken.append(float(action[0]))
        return {"s": np.ones(1)}, float(len(self.taken)), len(self.taken) == 4, False, {}


def test_an_action_is_repeated_as_often_as_it_chooses():
    env = Repeated(Counting(), {"type": "repeated", "num": 3, "discount": 0.5})
    assert (env.action_dim, env.num_choices) == (4, 3)
    assert env.action_low.tolist() == [0, 0, 0, -2] and env.action_high.tolist() == [1, 1, 1, 2]
    assert env.reset()[0]["duration"].tolist() == [0]
    obs, reward, *ends, _ = env.step(np.array([0.0, 0.0, 1.0, 1.5]))
    assert (reward, obs["duration"].tolist(), ends) == (1 + 0.5 * 2 + 0.25 * 3, [3], [False, False])
    obs, reward, *ends, _ = env.step(np.array([0.0, 1.0, 0.0, -1.0]))
    assert (reward, obs["duration"].tolist(), ends) == (4.0, [1], [True, False])
    assert env.taken == [1.5, 1.5, 1.5, -1.0]


GOALS = {"type": "goals", "of": "flat", "tolerance": 0.5}


def test_goals_are_drawn_from_a_box_or_from_points_and_rewarded_when_reached():
    box = {**GOALS, "low": [0.0, 2.0, -1.0], "high": [1.0, 3.0, -1.0]}
    env = wrapped(box, keys=["desired_goal", "achieved_goal"])
    first, again, other = (env.reset(seed=seed)[0]["desired_goal"] for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()
    assert 0 <= first[0] <= 1 and 2 <= first[1] <= 3 and first[2] == -1
    obs, reward, *_, info = env.step(np.zeros(1))
    assert (reward, info["success"]) == (-1.0, False) and info["reward"] < 0
    assert obs["achieved_goal"].tolist() == obs["flat"].tolist()
    rewards = env.goal_rewards(np.array([[0.0, 0.3], [0.0, 0.6]]), np.zeros((2, 2)))
    assert rewards.tolist() == [0.0, -1.0]
    known = wrapped({**GOALS, "points": [[1.0, 0.0, 0.0]]})
    assert known.reset(seed=0)[0]["desired_goal"].tolist() == [1, 0, 0]
    assert known.is_success() == {"task": False}
    for tolerance, reached in ((0.5, False), (9.0, True)):
        env = wrapped({**GOALS, "tolerance": tolerance, "points": [[1.0, 0.0, 8.0]]})
        assert env.is_success() == {"task": False}
        env.reset(seed=0)
        _, reward, *_, info = env.step(np.zeros(1))
        assert (reward, info["success"]) == (0.0 if reached else -1.0, reached)
        assert env.is_success() == {"task": reached}
        env.reset(seed=0)
        assert env.is_success() == {"task": False}
    words_low = {**GOALS, "low": ["a"], "high": [1.0]}
    for settings, words in (
        (GOALS, "no low"),
        ({**GOALS, "points": [1.0]}, "list of lists"),
        (words_low, "no low: write a list of numbers"),
    ):
        with pytest.raises(EnvError, match=words):
            wrapped(settings)
    with pytest.raises(EnvError, match="goals have 1 numbers, but 'flat' has shape"):
        wrapped({**GOALS, "low": [0.0], "high": [1.0]}).reset()


def test_states_of_demonstrations_become_goals(tmp_path):
    states = np.arange(20, dtype=np.float32).reshape(-1, 1)
    path = tmp_path / "a.hdf5"
    write_demos(path, [episode(20, {"x": states})])
    wrapper = {"type": "goals", "of": "x"}
    online = {"enabled": True, "env": "Pendulum-v1", "wrappers": [wrapper]}
    words = {"obs": {"desired_goal": 1}, "train": {"online": online}}
    config = tiny_config("sac", f"train.data={path}", **words)
    (found,) = online_env_meta(config)["wrappers"]
    assert found["points"] == [
        [2.0],
        [4.0],
        [6.0],
        [8.0],
        [10.0],
        [11.0],
        [13.0],
        [15.0],
        [17.0],
        [19.0],
    ]
    with pytest.raises(ConfigError, match="there is no train.data: name some, or give low"):
        online_env_meta(tiny_config("sac", **words))


REPEATED = {"enabled": True, "env": "Pendulum-v1", "wrappers": [{"type": "repeated", "num": 3}]}


def test_values_discount_by_the_duration():
    words = {"obs": {"flat": 3, "duration": 1}, "train": {"online": REPEATED}}
    section = {"num_choices": 3, "num_continuous": 1, "discount": 0.5}
    algo = tiny_algo("sac", action=4, algo=section, **words)
    assert online_env_meta(algo.global_config)["wrappers"][0]["discount"] == 0.5
    obs = {"flat": torch.zeros(3, 1, 3), "duration": torch.zeros(3, 1, 1)}
    after = {**obs, "duration": torch.tensor([1.0, 3.0, 2.0]).reshape(3, 1, 1)}
    raw = {"obs": obs, "next_obs": after, "actions": torch.zeros(3, 1, 4)}
    raw |= {"n_step_rewards": torch.zeros(3), "discounts": torch.tensor([0.5, 0.5, 0.0])}
    found = algo.process_batch_for_training(raw)["discounts"]
    assert found.tolist() == pytest.approx([0.5, 0.125, 0.0])


@pytest.mark.parametrize(
    ("name", "section", "keys", "words"),
    [
        ("sac", {"n_step": 3}, {"flat": 3, "duration": 1}, "algo.n_step is 3: set it to 1"),
        ("sac", {}, {"flat": 3}, "lacks duration: list it"),
        ("ppo", {}, {"flat": 3, "duration": 1}, "have one discount per step: choose sac"),
    ],
)
def test_what_does_not_go_with_repetition_is_refused(name, section, keys, words):
    with pytest.raises(ConfigError, match=words):
        tiny_config(name, obs=keys, algo=section, train={"online": REPEATED})


def test_wrappers_are_part_of_the_description_also_for_another_environment():
    listed = [{"type": "skills", "num": 2}, {"type": "previous_action"}]
    env = wrapped(*listed)
    assert env.serialize()["wrappers"] == listed
    assert set(env.reset(seed=0)[0]) == {"flat", "skill", "previous_action"}
    assert named_env("CartPole-v1", env.serialize())["wrappers"] == listed
    online = {"enabled": True, "env": "Pendulum-v1", "wrappers": listed}
    config = tiny_config("sac", obs={"flat": 3}, train={"online": online})
    assert online_env_meta(config)["wrappers"] == listed


@pytest.mark.parametrize(
    ("wrappers", "words"),
    [
        ("skills", "write a list"),
        ([{"type": "os.system"}], "there is no wrapper 'os.system': choose one of goals, skills"),
        ([{"type": "skills", "num": 10**9}], "whole number from 1 to 4096"),
    ],
)
def test_descriptions_that_cannot_be_read_are_refused(wrappers, words):
    with pytest.raises(EnvError, match=words):
        make_env({**PENDULUM, "wrappers": wrappers})


@pytest.mark.parametrize("entry", [{"type": "skills"}, {"type": "previous_action", "num": 2}])
def test_a_number_belongs_to_skills(entry):
    with pytest.raises(ValueError, match="num is"):
        WrapperConfig(**entry)


def test_a_robot_s_policy_is_given_one_skill():
    observed = {"flat": ObservedKey((3,), "low_dim"), "skill": ObservedKey((4,), "low_dim")}
    schema = Schema(observed, 1, (-1.0,), (1.0,))
    policy = SimpleNamespace(control_freq=20.0)
    policy.predict_chunk = lambda history: history[0]["skill"]
    skilled = SkilledPolicy(policy, schema, 2)
    assert skilled.obs_keys == ("flat",) and tuple(skilled.schema.observations) == ("flat",)
    assert skilled.predict_chunk([{"flat": 0.0}]).tolist() == [0, 0, 1, 0]
    assert skilled.control_freq == 20.0
    with pytest.raises(UserError, match="skills 0 to 3"):
        SkilledPolicy(policy, schema, 4)
    with pytest.raises(UserError, match="no observation 'skill'"):
        SkilledPolicy(policy, skilled.schema, 0)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (
            {"env_name": "Lift", "type": 3},
            r"env_args\['type'\] is 3.*1 \(robosuite\), 2 \(gymnasium\)",
        ),
        ({}, "is missing"),
        ({"type": 1}, "'env_name'"),
    ],
)
def test_a_description_that_names_no_environment(meta, words):
    with pytest.raises(EnvError, match=words):
        make_env(meta)


def test_missing_robosuite_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "robosuite", None)
    with pytest.raises(
        EnvError, match=r"pip install 'robosuite>=1.5.2,<1.6'.*pip install '\.\[robosuite\]'"
    ):
        make_env({"env_name": "Lift", "type": 1})


def test_gymnasium_by_type():
    env = make_env({"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {"g": 5.0}})
    assert env.serialize()["env_kwargs"] == {"g": 5.0}
    env.close()


@pytest.mark.parametrize(
    ("meta", "made", "real", "robot", "team"),
    [
        ({"type": 1, "env_name": "Lift"}, True, False, False, False),
        ({"type": 2, "env_name": "A-v0"}, True, False, False, False),
        ({"type": 3, "env_name": "A"}, False, False, False, False),
        ({"type": 4, "env_name": "arm"}, False, True, False, False),
        ({"env_name": None}, False, True, False, False),
        ({"type": 2, "env_name": "robot:arm"}, True, True, True, False),
        ({"type": 2, "env_name": "pettingzoo:a"}, True, False, False, True),
    ],
)
def test_kinds_of_descriptions(meta, made, real, robot, team):
    assert (can_be_made(meta), is_real(meta)) == (made, real)
    assert (is_robot(meta), is_team(meta)) == (robot, team)


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"type": 4}, "is 4, a real robot|--env robot:NAME"),
        ({}, "is missing"),
        ({"type": [1]}, "is [1]; environments that can be made here have 1 (robosuite), 2 (gymnasium)"),
        ({"type": 2}, "has no 'env_name'"),
        ({"type": 1, "env_name": "Lift"}, None),
    ],
)  # fmt: skip
def test_what_cannot_be_made_is_refused(meta, words):
    if words is None:
        return check_description(meta)
    with refused(words, error=EnvError):
        check_description(meta)


@pytest.fixture
def calls(monkeypatch):
    """The arguments with which an environment would be made, in place of the simulators."""
    found = []

    def kind(module, name):
        def made(*args, **words):
            found.append((name, args, words))
            return name

        monkeypatch.setitem(sys.modules, module, types.SimpleNamespace(**{name: made}))

    kind("imitate.envs.robosuite_env", "RobosuiteEnv")
    kind("imitate.envs.pettingzoo_env", "PettingZooEnv")
    kind("imitate.envs.gymnasium_env", "GymnasiumEnv")
    kind(make.ROBOTS_ROOM, "robot_env")
    monkeypatch.setattr(make, "check_trusted", lambda meta: found.append("trusted"))
    monkeypatch.setattr(make, "fitted", lambda meta: {**meta, "env_kwargs": {"of": "fitted"}})
    return found


CAMERAS = {"camera_names": ["top"], "camera_size": 32}
SEEN, UNSEEN = {"obs_keys": ["a"], "render": True}, {"obs_keys": None, "render": False}
ALL = {**SEEN, **CAMERAS}
ONE, PARTS = {"reward_parts": False}, {"reward_parts": True}
LIFT, TASK = {"type": 1, "env_name": "Lift"}, {"type": 2, "env_name": "A"}
TEAM, ARM = {"type": 2, "env_name": "pettingzoo:a"}, {"type": 2, "env_name": "robot:arm"}


@pytest.mark.parametrize(
    ("meta", "words", "name", "args", "passed"),
    [
        (LIFT, ALL, "RobosuiteEnv", ("Lift", {"of": "fitted"}), ALL),
        ({**TASK, "env_kwargs": {"b": 1}}, SEEN, "GymnasiumEnv", ("A", {"b": 1}), {**SEEN, **ONE}),
        ({**TASK, "reward_parts": True}, UNSEEN, "GymnasiumEnv", ("A", {}), {**UNSEEN, **PARTS}),
        (TEAM, {**SEEN, "team": True}, "PettingZooEnv", ("pettingzoo:a", {}), SEEN),
        (ARM, SEEN, "robot_env", (ARM, ["a"]), {}),
    ],
)  # fmt: skip
def test_arguments_reach_the_simulator(calls, meta, words, name, args, passed):
    assert make_env(meta, **words) == name
    assert calls == ["trusted", (name, args, passed)]


def test_several_agents_are_for_callers_that_can_handle_them(calls):
    with refused("pettingzoo:a has several agents", error=EnvError):
        make_env({"type": 2, "env_name": "pettingzoo:a"})


def test_wrappers_are_put_around_the_environment(calls, monkeypatch):
    def wrapped(meta, obs_keys, make_inner):
        return (obs_keys, make_inner(["b"]))

    monkeypatch.setattr(make, "wrapped", wrapped)
    meta = {"type": 1, "env_name": "Lift", "wrappers": [{"name": "w"}]}
    assert make_env(meta, **SEEN, **CAMERAS) == (["a"], "RobosuiteEnv")
    assert calls[-1][2] == {"obs_keys": ["b"], "render": True, **CAMERAS}
    for name in ("robot:arm", "pettingzoo:a"):
        with refused(f"{name}: wrappers work only for a simulated environment", error=EnvError):
            make_env({**meta, "env_name": name})


# ---- limits and defaults of wrappers -------------------------------------------------------------


class Still:
    """Returns what it is given; knows a state, and that it executes half of an action."""

    name, action_dim, num_choices = "still", 2, 0
    action_low, action_high = -np.ones(2), np.ones(2)

    def __init__(self, keys=None):
        self.keys, self.success, self.number = keys, False, 0

    def reset(self, *, seed=None):
        self.number = 0
        return {"s": np.array([3.0])}, {"seed": seed}

    def reset_to(self, state):
        return {"s": state["states"]}

    def step(self, action):
        self.number += 1
        info = {"executed_action": action / 2, "success": self.success}
        return {"s": action[:1]}, 1.0, False, self.number == 5, info

    def serialize(self):
        return {"env_name": "still"}


def around(*wrappers, keys=None):
    made = []

    def inner(wanted):
        made.append(Still(wanted))
        return made[0]

    return make.wrapped({"wrappers": list(wrappers)}, keys, inner), made[0]


@pytest.mark.parametrize(
    ("wrappers", "keys", "inner"),
    [
        ([{"type": "skills", "num": 2}], None, None),
        ([{"type": "skills", "num": 2}], ["s", "skill"], ["s"]),
        ([{"type": "goals", "of": "z", "points": [[1.0]]}], ["s", "desired_goal"], ["s", "z"]),
        ([{"type": "goals", "of": "z", "points": [[1.0]]}], ["z", "s"], ["z", "s"]),
        ([{"type": "skills", "num": 2}, {"type": "goals", "of": "skill", "points": [[1.0]]}], ["s"], ["s"]),
        ([], ["s", "skill"], ["s", "skill"]),
    ],
)  # fmt: skip
def test_the_inner_environment_returns_what_the_wrappers_read(wrappers, keys, inner):
    env, made = around(*wrappers, keys=keys)
    assert made.keys == inner
    assert env.serialize().get("wrappers", []) == wrappers


def test_a_restored_state_begins_an_episode():
    env, _ = around({"type": "previous_action"}, {"type": "skills", "num": 3})
    obs, info = env.reset(seed=4)
    assert info == {"seed": 4} and obs["skill"].tolist() == [0, 1, 0]
    obs = env.step(np.array([0.5, 1.0]))[0]
    assert obs["previous_action"].tolist() == [0.25, 0.5, 1] and obs["s"].tolist() == [0.5]
    obs["skill"][:] = obs["previous_action"][:] = 9
    assert env.step(np.zeros(2))[0]["skill"].tolist() == [0, 1, 0]
    obs = env.reset_to({"states": np.array([7.0])})
    assert obs["s"].tolist() == [7.0] and obs["previous_action"].tolist() == [0, 0, 0]
    assert obs["skill"].sum() == 1 and obs["skill"].dtype == obs["previous_action"].dtype == "f4"
    # without a seed the sequence of the last one continues
    drawn = [
        env.reset(seed=4) and [int(env.reset()[0]["skill"].argmax()) for _ in range(9)]
        for _ in "ab"
    ]
    assert drawn[0] == drawn[1] and set(drawn[0]) == {0, 1, 2}


@pytest.mark.parametrize(
    ("num", "allowed"),
    [
        (1, True),
        (4096, True),
        (0, False),
        (4097, False),
        (True, False),
        (2.0, False),
        (None, False),
    ],
)
def test_whole_numbers_of_wrappers(num, allowed):
    settings = {"type": "skills", "num": num}
    if allowed:
        assert make.count_in(settings, "num") == num
        return
    words = f"env_args['wrappers']: skills has num {num!r}: write a whole number from 1 to 4096"
    with refused(words, error=EnvError):
        make.count_in(settings, "num")


def test_repetitions_end_with_success_or_the_episode():
    env, made = around({"type": "repeated", "num": 4})
    assert env.action_dim == 6 and env.reset()[0]["duration"].tolist() == [0]
    obs, reward, ended, over, info = env.step(np.array([0, 0, 1.0, 0, 0.5, 1.0]))
    assert (reward, obs["duration"].tolist(), ended, over) == (3.0, [3], False, False)
    assert info["executed_action"].tolist() == [0, 0, 1, 0, 0.25, 0.5]
    obs, reward, ended, over, _ = env.step(np.array([0, 0, 0, 1.0, 0, 0]))
    assert (reward, obs["duration"].tolist(), ended, over) == (2.0, [2], False, True)
    assert env.reset()[0]["duration"].tolist() == [0]
    made.success = True
    assert env.step(np.array([0, 0, 0, 1.0, 0, 0]))[0]["duration"].tolist() == [1]
    made.num_choices = 3
    with refused(
        "env_args['wrappers']: the wrapper 'repeated' needs continuous actions, but still takes choices",
        error=EnvError,
    ):
        Repeated(made, {"type": "repeated", "num": 4})


@pytest.mark.parametrize(("place", "reached"), [(0.1, True), (0.11, False), (-0.05, True)])
def test_a_goal_is_reached_within_a_tenth(place, reached):
    env, _ = around({"type": "goals", "of": "s", "points": [[0.0]]})
    found = env.goal_rewards(np.float64([[place], [3.0]]), np.float64([[0.0], [3.0]]))
    assert found.tolist() == [0.0 if reached else -1.0, 0.0] and found.dtype == np.float32
    env.reset(seed=0)
    _, reward, _, _, info = env.step(np.array([place / 2, 0.0]))
    assert (reward, info["reward"], info["success"]) == (0.0, 1.0, True)


def test_goals_without_a_seed_continue_the_sequence():
    points = {"type": "goals", "of": "s", "points": [[float(n)] for n in range(9)]}
    box = {"type": "goals", "of": "s", "low": [0.0], "high": [9.0]}
    for settings in (points, box):
        env, _ = around(settings)
        drawn = []
        for _ in range(2):
            env.reset(seed=5)
            drawn.append([float(env.reset()[0]["desired_goal"][0]) for _ in range(5)])
        assert drawn[0] == drawn[1] and len(set(drawn[0])) > 2
        obs, _ = env.reset(seed=5)
        obs["desired_goal"][:] = -1
        assert env.step(np.zeros(2))[0]["desired_goal"][0] >= 0
    for bad in ([[0.0, np.nan]], [[]], [1.0], "x", None):
        with refused("goals has no points: write a list of lists of numbers", error=EnvError):
            around({**points, "points": bad})
    with refused("goals has no low: write a list of numbers", error=EnvError):
        around({**box, "low": [0.0, np.inf]})


def test_a_wrapper_that_is_being_copied_has_no_inner_environment():
    with pytest.raises(AttributeError, match="_env"):
        object.__new__(Repeated).anything  # noqa: B018


@pytest.mark.parametrize(
    ("offers", "words"), [(True, "check-deploy CHECKPOINT"), (False, "name a simulated one with")]
)
def test_a_real_robot_has_no_environment(monkeypatch, offers, words):
    monkeypatch.setattr(make, "offered", lambda option: offers)
    with refused(words, error=EnvError):
        check_description({"type": 4})


def test_without_any_seed_skills_and_goals_are_those_of_the_seed_0():
    def numbers(count):
        random = np.random.default_rng(0)
        return [int(random.integers(count)) for _ in range(9)]

    env, _ = around({"type": "skills", "num": 3})
    assert [int(env.reset()[0]["skill"].argmax()) for _ in range(9)] == numbers(3)
    env, _ = around({"type": "goals", "of": "s", "points": [[float(n)] for n in range(5)]})
    assert [int(env.reset()[0]["desired_goal"][0]) for _ in range(9)] == numbers(5)
