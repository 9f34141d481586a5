"""Weights of steps reach the loss of each way to clone behavior."""

from pathlib import Path

import pytest
import torch

from imitate.functional.losses import sample_weight, step_weight
from tests.algo.test_contract import algo_of
from tests.tiny import tiny_batch

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = (
    *("bc/bc_chunk", "bc/bc_gaussian", "bc/bc_rnn_gmm", "bc/bc_transformer_rotary", "bc/bc_vae"),
    *("act/act", "vq_bet/vq_bet", "diffusion_policy/diffusion_policy", "flow_policy/flow_policy"),
)
"""A configuration of each kind of loss, and of each way to take steps of a window."""
PATHS = [CONFIGS / f"{name}.json" for name in NAMES]


def make_algo(path):
    algo = algo_of(path)
    algo.set_eval()
    return algo


def row(raw, i):
    return {k: row(x, i) if isinstance(x, dict) else x[i : i + 1] for k, x in raw.items()}


def loss(algo, raw):
    torch.manual_seed(0)
    batch = algo.process_batch_for_training(raw)
    return algo.train_on_batch(batch, 1, validate=True)["Loss"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_weighs_nothing_does_not_change_the_loss_and_equal_weights_change_nothing(path):
    algo = make_algo(path)
    raw, other = tiny_batch(algo), tiny_batch(algo)
    other["actions"][2:] = torch.rand(other["actions"][2:].shape) * 2 - 1
    assert loss(algo, raw) != loss(algo, other)
    for batch in (raw, other):
        batch["weight"] = torch.ones(batch["actions"].shape[:2])
        batch["weight"][2:] = 0.0
    torch.testing.assert_close(loss(algo, raw), loss(algo, other))
    raw = tiny_batch(algo)
    if algo.global_config.train.seq_length > 3:
        raw["pad_mask"][:2, -2:] = False
    unweighted = loss(algo, raw)
    raw["weight"] = torch.full(raw["actions"].shape[:2], 3.0)
    torch.testing.assert_close(loss(algo, raw), unweighted)


def test_a_weighted_loss_is_the_weighted_mean_of_the_samples():
    algo = make_algo(CONFIGS / "bc/bc_gmm.json")
    raw = tiny_batch(algo, 3)
    each = [loss(algo, row(raw, i)) for i in range(3)]
    raw["weight"] = torch.tensor([[1.0], [0.5], [2.5]])
    expected = (1.0 * each[0] + 0.5 * each[1] + 2.5 * each[2]) / 4.0
    torch.testing.assert_close(loss(algo, raw), expected)


def test_padding_counts_nothing_and_a_sample_counts_by_its_real_steps():
    batch = {
        "weight": torch.tensor([[1.0, 3.0], [4.0, 8.0]]),
        "pad_mask": torch.tensor([[True, True], [True, False]]),
    }
    assert step_weight(batch).tolist() == [[1.0, 3.0], [4.0, 0.0]]
    assert sample_weight(batch).tolist() == [2.0, 4.0]
    assert step_weight({"pad_mask": batch["pad_mask"]}) is batch["pad_mask"]
    assert sample_weight({"pad_mask": batch["pad_mask"]}) is None
