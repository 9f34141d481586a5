import os
import signal

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from imitate.envs import make_env, make_vector_env
from imitate.errors import EnvError

PENDULUM = {"env_name": "Pendulum-v1", "type": 2}
LIFT = {"env_name": "Lift", "type": 1}


def test_copies_step_together_and_wait_for_their_reset():
    envs = make_vector_env(PENDULUM, 2, max_episode_steps=3, autoreset_mode=AutoresetMode.DISABLED)
    obs, _ = envs.reset(seed=[4, 5])
    single = make_env(PENDULUM)
    np.testing.assert_array_equal(obs["flat"][1], single.reset(seed=5)[0]["flat"])
    for step in range(3):
        obs, rewards, terminated, truncated, info = envs.step(np.zeros((2, 1), np.float32))
        assert (terminated.tolist(), truncated.tolist()) == ([False] * 2, [step == 2] * 2)
        assert "success" not in info
    expected = [single.step(np.zeros(1))[0]["flat"] for _ in range(3)][-1]
    np.testing.assert_allclose(obs["flat"][1], expected, atol=1e-6)
    fresh, _ = envs.reset(seed=[7, 7], options={"reset_mask": np.array([True, False])})
    np.testing.assert_array_equal(fresh["flat"][0], single.reset(seed=7)[0]["flat"])
    np.testing.assert_array_equal(fresh["flat"][1], obs["flat"][1])
    envs.close()


def test_a_dead_process_is_named():
    envs = make_vector_env(PENDULUM, 2)
    envs.reset(seed=0)
    os.kill(envs.processes[1].pid, signal.SIGKILL)
    envs.processes[1].join()
    with pytest.raises(EnvError, match=r"Pendulum-v1: the process of copy \[1\] ended"):
        envs.step(np.zeros((2, 1), np.float32))
    assert not any(process.is_alive() for process in envs.processes)


def test_an_environment_that_cannot_be_made():
    with pytest.raises(EnvError, match="did you mean 'Pendulum-v1'"):
        make_vector_env({"env_name": "Pendulm-v1", "type": 2}, 2)


@pytest.mark.robosuite
@pytest.mark.nightly
def test_two_robosuite_copies():
    envs = make_vector_env(LIFT, 2, obs_keys=["object", "robot0_eef_pos"])
    obs, info = envs.reset(seed=[1, 2])
    assert {key: value.shape for key, value in obs.items()} == {
        "object": (2, 10),
        "robot0_eef_pos": (2, 3),
    }
    single = make_env(LIFT, obs_keys=["object", "robot0_eef_pos"])
    np.testing.assert_array_equal(obs["object"][1], single.reset(seed=2)[0]["object"])
    obs, rewards, *_, info = envs.step(np.zeros((2, 7), np.float32))
    np.testing.assert_allclose(obs["object"][1], single.step(np.zeros(7))[0]["object"], atol=1e-9)
    assert (rewards.tolist(), info["success"].tolist()) == ([0.0, 0.0], [False, False])
    single.close()
    envs.close()
