"""Cal-QL: values of the policy's actions are at least the return, by hand; the rest is CQL's (test_cql.py)."""

import math

import pytest
import torch

from tests.tiny import tiny_algo, tiny_batch

from .test_cql import Fixed, make, prepared


def test_calibrated_values_of_the_policy_are_at_least_the_return_and_random_ones_are_not_touched(
    worlds,
):
    algo = make(algo_name="cal_ql", ac_dim=1)
    algo.nets["critic"] = Fixed([0.0, 0.0], [0.0, 5.0])
    algo.samples = torch.zeros(1, 12, 1), torch.zeros(1, 12)
    batch = {**prepared(algo, 2), "returns": torch.tensor([2.0, -3.0])}
    gaps = [worlds.losses(algo, worlds.only(batch, row))["Q_Gap"] for row in (0, 1)]
    # A return of 2 stands in for the 8 values of the policy that are 0, not for those of 5; one of -3 for none.
    assert gaps[0] == pytest.approx(math.log((4 + 8 * math.exp(2)) / 12) / 2, abs=1e-5)
    assert gaps[1] == pytest.approx(0.0, abs=1e-5)


def test_the_return_is_that_of_the_samples_own_step():
    algo = tiny_algo("cal_ql", "train.frame_stack=3")
    raw = tiny_batch(algo)
    found = algo.process_batch_for_training(raw)["returns"]
    torch.testing.assert_close(found, raw["returns"][:, 2])


def test_calibration_enters_the_critics_loss_and_its_gradient(worlds):
    loss, slope = {}, {}
    for algo_name in ("cql", "cal_ql"):
        algo = make(
            (
                "algo.critic.target_q_gap=null",
                "algo.critic.cql_weight=1.0",
                "algo.critic.num_random_actions=1",
            ),
            algo_name=algo_name,
            ac_dim=1,
        )
        algo.nets["critic"] = Fixed([1.0, 1.0])
        algo.nets["critic_target"] = Fixed([0.0, 0.0])
        batch = {
            **prepared(algo, 1),
            "actions": torch.zeros(1, 1),
            "rewards": torch.zeros(1),
            "discounts": torch.zeros(1),
            "returns": torch.tensor([3.0]),
        }
        algo.samples = torch.tensor([[[0.0], [1.0], [-1.0]]]), torch.zeros(1, 3)
        loss[algo_name] = worlds.gradients(algo, batch)["Critic_Loss"]
        slope[algo_name] = algo.nets["critic"].slopes.grad[0].item()
    e = math.e
    assert loss["cql"] == pytest.approx(2 * math.log((1 + e + 1 / e) / 3))
    assert slope["cql"] == pytest.approx((e - 1 / e) / (1 + e + 1 / e))
    # Both of the policy's actions count as the return 3, so that their values give no gradient.
    assert loss["cal_ql"] == pytest.approx(2 * math.log((1 + 2 * e**3) / 3))
    assert slope["cal_ql"] == 0.0
