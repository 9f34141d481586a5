"""Named rewards of a training in evaluations: sums, means by hand, bounds, and what an environment lacks."""

import math

import pytest
import torch

from imitate.evaluate.evaluate import evaluate
from imitate.evaluate.named_rewards import RewardMeans, RewardSpec, RewardSums, reward_means
from imitate.evaluate.result import result_from_dict
from imitate.evaluate.settings import EvalSettings
from imitate.system.statistics import Estimate
from imitate.train.outcomes import rollout_numbers
from tests.tiny import tiny_checkpoint

SPEED, COST = RewardSpec("speed", "reward", at_least=0.0), RewardSpec("cost", "info:c", at_most=1.0)
ENV = {"env_name": "imitate.envs.worlds.tasks:SpeedLimit-v0", "type": 2, "env_kwargs": {}}


def test_sums_leave_out_what_a_step_lacks():
    sums = RewardSums([SPEED, COST])
    sums.add(2.0, {"c": 0.5})
    sums.add(-1.0, {"c": torch.tensor(0.25).numpy()})
    assert sums.totals() == {"speed": 1.0, "cost": 0.75}
    sums.add(1.0, {})
    assert sums.totals() == {"speed": 2.0}
    assert RewardSums([]).totals() is None


def test_means_by_hand():
    """Episodes of 2 and 6 steps that cost 4 and 4: 1 per step, deviations 4 - 1 * 2 and 4 - 1 * 6 over 4 steps."""
    (cost,) = reward_means([COST], [{"cost": 4.0}, {"cost": 4.0}], [2, 6])
    assert cost.per_step.value == 1.0 and cost.per_episode.value == 4.0
    assert cost.per_step.std == pytest.approx(math.sqrt(0.5))  # of 1.5 and 0.5
    assert (cost.meets, cost.is_certain) == (True, False)
    assert reward_means([COST], [{"cost": 4.0}, {}], [2, 6]) == []
    assert reward_means([COST], [{"cost": 4.0}, {"cost": math.inf}], [2, 6]) == []
    assert reward_means([COST], [], []) == []
    found = cost.to_dict()
    assert (found["per_step_95"], found["per_episode_95"]) == (list(cost.per_step[1:3]), None)
    assert found["at_most"] == 1.0 and "at_least" not in found and found["is_certain"] is False


@pytest.mark.parametrize(
    ("spec", "value", "meets"),
    [
        (RewardSpec("x", "reward", at_most=0.5), 0.4, True),
        (RewardSpec("x", "reward", at_most=0.5), 0.6, False),
        (RewardSpec("x", "reward", at_least=0.5), 0.6, True),
        (RewardSpec("x", "reward", at_least=0.5), 0.4, False),
        (RewardSpec("x", "reward"), 0.4, None),
    ],
)
def test_bounds(spec, value, meets):
    (found,) = reward_means([spec], [{"x": 10 * value - 0.01}, {"x": 10 * value + 0.01}], [10, 10])
    assert found.meets is meets and found.is_certain is (meets is not None)
    assert found.to_dict().get("meets") is meets
    assert ("NOT KEPT" in found.words, ": kept" in found.words) == (meets is False, meets is True)


def means(low, value, high, **bound):
    spec = RewardSpec("x", "reward", **bound)
    return RewardMeans(spec, Estimate(value, low, high, 0.1, 9), Estimate(3.0, None, None, None, 1))


@pytest.mark.parametrize(
    ("found", "meets", "certain"),
    [
        (means(0.4, 0.5, 0.6, at_most=0.5), True, False),
        (means(0.4, 0.5, 0.6, at_least=0.5), True, False),
        (means(0.5, 0.6, 0.7, at_most=0.5), False, False),
        (means(0.3, 0.4, 0.5, at_least=0.5), False, False),
        (means(0.51, 0.6, 0.7, at_most=0.5), False, True),
        (means(0.3, 0.4, 0.49, at_least=0.5), False, True),
        (means(None, 0.4, None, at_least=0.5), False, False),
        (means(0.3, 0.4, 0.5), None, False),
    ],
)
def test_a_bound_and_its_interval(found, meets, certain):
    assert (found.meets, found.is_certain) == (meets, certain)


def test_bounds_in_words():
    interval = "x 0.6 (95 % interval 0.4 - 0.8) per step"
    assert means(0.4, 0.6, 0.8).words == interval
    assert means(0.4, 0.6, 0.8, at_most=0.9).words == f"{interval}, at most 0.9: kept"
    sure = ", but the interval contains the bound"
    assert means(0.4, 0.6, 0.8, at_least=0.7).words == f"{interval}, at least 0.7: NOT KEPT{sure}"
    own = {"per_step": 0.6, "per_step_95": [0.4, 0.8], "per_episode": 3.0, "per_episode_95": None}
    assert means(0.4, 0.6, 0.8).to_dict() == own
    kept = {"at_least": 0.0, "meets": True, "is_certain": True}
    assert means(0.4, 0.6, 0.8, at_least=0.0).to_dict() == {**own, **kept}
    assert means(None, 0.6, None).to_dict()["per_step_95"] is None


def speed_policy(path, source):
    """A checkpoint that was trained for speed with a bound on a number in info."""
    rewards = {"speed": {}, "cost": {"source": source, "weight": 0, "at_most": 0.25}}
    online = {"online": {"enabled": True}}
    return tiny_checkpoint(
        path, "sac", env=ENV, obs={"flat": 1}, algo={"rewards": rewards}, train=online
    )


@pytest.mark.parametrize("mode", ["processes", "vector"])
def test_an_evaluation_measures_them(tmp_path, mode):
    policy = speed_policy(tmp_path / "speed.pth", "info:cost")
    result = evaluate(policy, None, EvalSettings(episodes=3, horizon=7, workers=2, mode=mode))
    assert [each.spec.name for each in result.rewards] == ["speed", "cost"]
    for episode in result.episodes:
        assert episode.rewards["speed"] == pytest.approx(episode.episode_return)
        assert 0.0 < episode.rewards["cost"] <= 7.0
    speed, cost = result.rewards
    assert cost.per_step.value == pytest.approx(cost.per_episode.value / 7)
    assert rollout_numbers([result])["Rollout/Bounds_Kept"] == float(cost.meets)
    again = result_from_dict(result.to_dict())
    assert again.to_dict()["rewards"] == result.to_dict()["rewards"]


def test_what_an_environment_does_not_report_is_left_out(tmp_path):
    policy = speed_policy(tmp_path / "speed.pth", "info:force")
    result = evaluate(policy, None, EvalSettings(episodes=1, horizon=3))
    assert [each.spec.name for each in result.rewards] == ["speed"]
    assert "Rollout/Bounds_Kept" not in rollout_numbers([result])
