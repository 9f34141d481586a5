"""Promises of every environment, for each simulator; `imitate check-env` tries most of it."""

from functools import partial

import numpy as np
import pytest

from imitate.checks.env import check_env
from imitate.envs import Env, make_env
from imitate.errors import EnvError

TASKS = "imitate.envs.worlds"
SIMULATORS = [
    "Pendulum-v1",
    "CartPole-v1",
    "InvertedPendulum-v5",
    f"{TASKS}.tasks:Recall-v0",
    f"{TASKS}.tasks:RecallContinuous-v0",
    f"{TASKS}.tasks:CartPoleNoVelocity-v1",
    f"{TASKS}.tasks:PendulumNoVelocity-v1",
    "gymnasium_robotics:FetchReach-v4",
    "metaworld:drawer-open-v3",
    "gym_aloha:gym_aloha/AlohaTransferCube-v0",
    pytest.param("Lift", marks=pytest.mark.robosuite),
]
LIFT_BY_NIGHT = [pytest.mark.robosuite, pytest.mark.nightly]
UNRESTORED = {"robot0_joint_acc", "desired_goal"}
"""Torques of the moment, and goals of gymnasium-robotics, which a recorded state does not hold."""


def meta_of(name):
    kwargs = {"obs_type": "state"} if name.startswith("gym_aloha") else {}
    return {"env_name": name, "type": 1 if name == "Lift" else 2, "env_kwargs": kwargs}


@pytest.fixture(scope="module", params=SIMULATORS)
def meta(request):
    return meta_of(request.param)


@pytest.fixture(scope="module")
def env(meta):
    made = make_env(meta)
    yield made
    made.close()


def assert_same(obs, expected, atol):
    assert obs.keys() == expected.keys()
    for key in obs.keys() - UNRESTORED:
        np.testing.assert_allclose(obs[key], expected[key], rtol=0, atol=atol, err_msg=key)


@pytest.mark.slow("steps of two simulators")
@pytest.mark.parametrize(
    "meta", [*SIMULATORS[:-1], pytest.param("Lift", marks=LIFT_BY_NIGHT)], indirect=True
)
def test_nothing_is_wrong(meta):
    """Limits, observations, seeds, ends, success and states, and gymnasium's own checker."""
    findings = check_env(partial(make_env, meta), meta, steps=25)
    assert [finding for finding in findings if finding.verdict == "error"] == []
    assert {"limits", "observations"} <= {f.name for f in findings if f.verdict == "ok"}


def test_numpys_global_generator_is_neither_used_nor_changed(env):
    first, _ = env.reset(seed=3)
    np.random.seed(5)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    again, _ = env.reset(seed=3)
    env.reset()
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert all((first[key] == again[key]).all() for key in first)


@pytest.mark.slow("two simulators are made")
def test_its_description_makes_the_same_environment(env):
    assert isinstance(env, Env)
    described = env.serialize()
    twin = make_env(described)
    assert twin.serialize() == described
    first, second = env.reset(seed=2)[0], twin.reset(seed=2)[0]
    twin.close()
    assert first.keys() == second.keys()
    assert all((first[key] == second[key]).all() for key in first)


def test_observations_are_chosen_by_name(meta, env):
    name = sorted(env.reset(seed=0)[0])[-1]
    chosen = make_env(meta, obs_keys=[name])
    assert list(chosen.reset(seed=0)[0]) == [name]
    chosen.close()
    with pytest.raises(EnvError, match=f"did you mean '{name}'"):
        make_env(meta, obs_keys=[name[:-1]]).reset(seed=0)


@pytest.mark.slow("steps of simulators")
def test_a_recorded_state_can_be_restored_and_its_actions_played_back(env):
    env.reset(seed=4)
    try:
        start = env.get_state()
    except EnvError as error:
        assert "not a MuJoCo environment" in str(error)  # noqa: PT017
        with pytest.raises(EnvError, match="not a MuJoCo environment"):
            env.reset_to({"states": np.zeros(3)})
        return
    size = (12, env.action_dim)
    actions = np.random.default_rng(0).uniform(env.action_low / 2, env.action_high / 2, size)
    follows = [(env.step(action)[0], env.get_state()) for action in actions]
    env.reset(seed=5)
    env.reset_to(start)
    for action, (expected, _) in zip(actions, follows, strict=True):
        assert_same(env.step(action)[0], expected, 1e-10)
    env.reset(seed=5)
    for obs, state in (follows[-1], follows[6]):
        assert_same(env.reset_to(state), obs, 1e-6)
    with pytest.raises(EnvError, match="has shape .*recording"):
        env.reset_to({"states": np.zeros(2)})


def test_an_action_of_another_size_is_refused(env):
    env.reset(seed=0)
    with pytest.raises(EnvError, match=rf"\({env.action_dim + 2},\)"):
        env.step(np.zeros(env.action_dim + 2))
