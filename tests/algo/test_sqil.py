"""SQIL: rewards say who acted."""

import torch

from imitate import algo_factory, load_config

TREE = {
    "algo_name": "sqil",
    "experiment": {"epoch_every_n_steps": 10},
    "train": {"online": {"env": "Pendulum-v1"}},
    "algo": {"discount": 0.9, "actor": {"layer_dims": [8]}, "critic": {"layer_dims": [8]}},
    "observation": {"modalities": {"obs": {"low_dim": ["x"]}}},
}


def make_algo():
    torch.manual_seed(0)
    return algo_factory("sqil", load_config(TREE), {"x": (2,)}, 1)


def batch(**changes):
    x = torch.zeros(4, 1, 2)
    values = {
        "obs": {"x": x},
        "next_obs": {"x": x},
        "actions": torch.zeros(4, 1, 1),
        "rewards": torch.full((4, 1), -7.0),
        "n_step_rewards": torch.full((4,), -7.0),
        "discounts": torch.tensor([0.9, 0.0, 0.9, 0.0]),
        "dones": torch.tensor([[0.0], [1.0], [0.0], [1.0]]),
    }
    return {**values, **changes}


def test_demonstrations_are_worth_1_rollouts_0_and_ends_last_for_ever():
    algo = make_algo()
    mixed = algo.process_batch_for_training(batch(part=torch.tensor([0, 0, 1, 1])))
    # After a terminal: 1 / (1 - 0.9) = 10 times the reward. The environment's -7 counts nowhere.
    torch.testing.assert_close(
        algo.reward_source.rewards(mixed), torch.tensor([0.0, 0.0, 1.0, 10.0])
    )
    shown = algo.process_batch_for_training(batch())
    torch.testing.assert_close(
        algo.reward_source.rewards(shown), torch.tensor([1.0, 10.0, 1.0, 10.0])
    )
