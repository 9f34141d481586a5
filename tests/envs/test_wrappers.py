"""Wrappers of environments, as env_args name them."""

from types import SimpleNamespace

import numpy as np
import pytest

from imitate.config.online import WrapperConfig
from imitate.deploy.schema import ObservedKey, Schema
from imitate.deploy.skill import SkilledPolicy
from imitate.envs import make_env
from imitate.errors import EnvError, UserError
from imitate.evaluate.environments import named_env
from imitate.train.online.setup import online_env_meta
from tests.tiny import tiny_config

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
        ([{"type": "os.system"}], "no wrapper 'os.system'; there are skills"),
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
