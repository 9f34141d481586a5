"""The experts in the simulator they are written for."""

import numpy as np
import pytest

from imitate.envs import make_env
from imitate.envs.experts import QUALITIES, Style, find_expert

pytestmark = pytest.mark.robosuite


@pytest.mark.slow("whole episodes in the simulator")
@pytest.mark.parametrize(
    ("task", "seeds", "limit"),
    [
        ("Lift", (0,), 60),
        ("Stack", (0,), 170),
        ("PickPlaceCan", (0,), 200),
        ("NutAssemblySquare", (0,), 250),
        pytest.param("NutAssemblyRound", (0,), 250, marks=pytest.mark.nightly),
        pytest.param("Door", (0,), 150, marks=pytest.mark.nightly),
        pytest.param("Stack", (1, 2), 170, marks=pytest.mark.nightly),
        pytest.param("ToolHang", (0,), 450, marks=pytest.mark.nightly),
        ("TwoArmLift", (0,), 100),
        pytest.param("TwoArmPegInHole", (0,), 150, marks=pytest.mark.nightly),
        pytest.param("TwoArmHandover", (0,), 250, marks=pytest.mark.nightly),
    ],
)
def test_expert_solves_its_task(task, seeds, limit):
    env = make_env({"env_name": task, "type": 1})
    for seed in seeds:
        expert = find_expert(task)(Style.sample(np.random.default_rng(seed), QUALITIES[0]))
        obs, _ = env.reset(seed=seed)
        success = False
        for _ in range(limit):
            action = expert.act(obs)
            assert action.shape == (env.action_dim,)
            obs, *_, info = env.step(np.clip(action, -1.0, 1.0))
            success = success or info["success"]
            if success:
                break
        assert success, f"seed {seed}"
    env.close()
