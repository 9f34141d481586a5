"""Uncertainty of policies that predict chunks: the spread of several chunks, predicted in one call."""

import pytest
import torch

from imitate.policy.rollout_policy import RolloutPolicy
from tests.tiny import tiny_algo

FEW = "algo.uncertainty_samples=3"


@pytest.mark.parametrize("name", ["act", "flow_policy", "diffusion_policy"])
def test_the_first_chunk_is_executed_and_the_spread_is_kept(name, monkeypatch):
    algo = tiny_algo(name, FEW, action=1)
    assert algo.gives_uncertainty and not tiny_algo(name).gives_uncertainty
    steps, first = algo.prediction_horizon, algo._first_action
    calls = []

    def various(obs, goal, generator):
        """Sample m of row b predicts m * (b + 1) * c, where c is the number of calls."""
        rows = len(obs["s"]) // 3
        calls.append(rows)
        m = torch.arange(3.0).repeat_interleave(rows)
        scale = m * (obs["s"].reshape(len(m), -1)[:, -1] + 1) * len(calls)
        return scale[:, None, None].expand(-1, steps, 1)

    monkeypatch.setattr(algo, "_predict_various", various)
    algo.set_eval()
    state = algo.initial_state(2)
    obs = {"s": torch.tensor([[0.0] * 3, [1.0] * 3])}
    deviation = (2.0 / 3.0) ** 0.5  # of 0, 1, 2
    step = algo.act(obs, state)
    assert step.action.tolist() == [[0.0], [0.0]]  # the first sample of each row
    assert step.extras["uncertainty"].tolist() == pytest.approx([deviation, 2 * deviation])
    later = algo.act(obs, step.state)
    assert calls == [2] and torch.equal(later.extras["uncertainty"], step.extras["uncertainty"])
    fresh = algo.reset_state(step.state, torch.tensor([False, True]))
    again = algo.act(obs, fresh)  # only the second row needs a new chunk
    assert calls == [2, 1]
    assert again.extras["uncertainty"].tolist() == pytest.approx([deviation, 4 * deviation])
    assert first + algo.execution.size == steps


@pytest.mark.parametrize("name", ["act", "flow_policy", "diffusion_policy"])
def test_the_spread_is_that_of_other_noise(name):
    algo = tiny_algo(name, FEW)
    obs = {"s": torch.zeros(3)}
    policy = RolloutPolicy(algo)
    policy(obs)
    assert float(policy.last_extras["uncertainty"]) > 0
    assert policy.predict_chunk([obs]).shape == (algo.execution.size, 1)
    if name == "act":  # its action has the mean style, as without samples
        plain = tiny_algo(name)
        policy.start_episode()
        assert policy(obs) == pytest.approx(RolloutPolicy(plain)(obs), abs=1e-6)
