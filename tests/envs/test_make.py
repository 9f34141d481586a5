import sys
import types

import pytest

from imitate.envs import make, make_env
from imitate.envs.make import can_be_made, check_description, is_real, is_robot, is_team
from imitate.errors import EnvError
from tests.refusals import refused


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
        with refused(f"{name}: wrappers are for one simulated environment", error=EnvError):
            make_env({**meta, "env_name": name})
