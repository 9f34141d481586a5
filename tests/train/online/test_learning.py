"""Every algorithm learns a world that a person solves at once."""

from dataclasses import replace

import numpy as np
import pytest

from imitate.data.batches.rewards import RewardTransform
from imitate.train.online.learners import ReplayLearner, RolloutLearner
from imitate.train.online.normalization import RewardScaler

from .told import SOFT, learns, told_algo, told_collector, told_memory

NIGHTLY = pytest.mark.nightly
pytestmark = pytest.mark.later


@pytest.mark.parametrize(
    ("name", "section", "choices"),
    [
        ("sac", SOFT, 0),
        ("td3", {}, 0),
        ("dqn", {}, 2),
        pytest.param("ddpg", {}, 0, marks=NIGHTLY),
        pytest.param("dqn", {"critic": {"num_quantiles": 8}}, 2, marks=NIGHTLY),
    ],
    ids=["sac", "td3", "dqn", "ddpg", "dqn of quantiles"],
)
def test_replay(name, section, choices):
    if choices:
        section = {
            **section,
            "target_update_freq": 20,
            "epsilon": {"schedule": [[0, 1.0], [0.5, 0.05]]},
        }
    algo = told_algo(name, section, choices)
    memory = told_memory(algo, choices)
    learner = ReplayLearner(algo, memory, memory, batch_size=32, update_ratio=1, warmup_steps=50)
    collector = told_collector(algo, choices=choices)
    assert learns(algo, collector, learner, rounds=400, within=0.3, random_rounds=50)


RARELY = [pytest.param(*case, marks=NIGHTLY) for case in (("ppo", 32, 2), ("a2c", 160, 0))]


@pytest.mark.parametrize(("name", "rounds", "choices"), [("ppo", 32, 0), ("a2c", 160, 2), *RARELY])
def test_rollouts(name, rounds, choices):
    algo = told_algo(name, choices=choices, rate=1e-2)
    scaler = RewardScaler(RewardTransform(), 4)
    learner = RolloutLearner(algo, rollout_steps=16, batch_size=32, reward_scaler=scaler)
    collector = told_collector(algo, choices=choices, envs=4)
    assert learns(algo, collector, learner, rounds=rounds, within=0.3, steps=16)


def test_a_rollout_without_a_sample_has_no_update():
    algo = told_algo("ppo")
    scaler = RewardScaler(RewardTransform(), 4)
    learner = RolloutLearner(algo, rollout_steps=4, batch_size=8, reward_scaler=scaler)
    collected = told_collector(algo, envs=4).collect(4)
    lost = [replace(step, lost=np.ones(4, dtype=bool)) for step in collected.steps]
    learner.take(replace(collected, steps=lost))
    assert list(learner.updates_due(1)) == []
    learner.take(told_collector(algo, envs=4).collect(4))
    assert list(learner.updates_due(1))
