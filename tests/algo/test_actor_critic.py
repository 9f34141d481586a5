"""Shared parts of algorithms with critics: batches of transitions, epochs of learning, exact resume."""

import numpy as np
import pytest
import torch

from imitate import SequenceDataset
from imitate.errors import DatasetError
from tests.algo.conftest import moved_by
from tests.tiny import tiny_algo

KEYS = {"robot0_eef_pos": 3, "object": 10}
NAMES = ["iql", "td3_bc", "awac", "rebrac"]


def make(algo_name, algo=None, seed=0, **train):
    train = {"obs_normalization": None, **train}
    return tiny_algo(algo_name, obs=KEYS, action=7, seed=seed, algo=algo or {}, train=train)


def dataset(algo, path):
    config = algo.global_config
    return SequenceDataset(
        path,
        list(KEYS),
        frame_stack=config.train.frame_stack,
        transitions=config.algo.data_needs(config).transitions,
    )


@pytest.mark.parametrize("name", NAMES)
def test_it_learns_from_a_file(name, demo_file):
    algo = make(name, frame_stack=2)
    data = dataset(algo, demo_file())
    algo.set_train()
    batch = algo.process_batch_for_training(data[np.arange(32)])
    assert batch["obs"]["object"].shape == batch["next_obs"]["object"].shape == (32, 2, 10)
    assert batch["rewards"].shape == batch["discounts"].shape == (32,)
    assert batch["actions"].shape == (32, 7)
    info = algo.train_on_batch(batch, 1)
    assert all(torch.isfinite(value) for value in info.values())
    losses = sum(value for key, value in info.items() if key.endswith("_Loss"))
    torch.testing.assert_close(info["Loss"], losses)


def test_windows_with_next_observations_are_transitions_of_one_step(demo_file):
    """A plain loop over robomimic's kind of dataset, frames stacked, windows longer than need be."""
    algo = make("iql", frame_stack=2)
    path = demo_file()
    plain = SequenceDataset(path, list(KEYS), frame_stack=2, seq_length=3, load_next_obs=True)
    rows = np.arange(3, 12)  # away from the demo's start, where only transitions repeat it rightly
    batches = [algo.process_batch_for_training(data[rows]) for data in (plain, dataset(algo, path))]
    for key in ("rewards", "discounts", "actions"):
        torch.testing.assert_close(batches[0][key], batches[1][key])
    for key in KEYS:
        torch.testing.assert_close(batches[0]["next_obs"][key], batches[1]["next_obs"][key])
    assert batches[0]["discounts"][-1] == 0.0


@pytest.mark.parametrize(
    ("name", "algo"), [("iql", {"n_step": 3}), ("rebrac", {}), ("iql", {"infinite_horizon": True})]
)
def test_windows_that_lack_what_is_learned_from_are_refused(name, algo, demo_file):
    plain = SequenceDataset(demo_file(), list(KEYS), load_next_obs=True)
    with pytest.raises(DatasetError, match="make the dataset by build_datasets"):
        make(name, algo).process_batch_for_training(plain[np.arange(4)])


def test_windows_without_rewards_are_refused(demo_file):
    plain = SequenceDataset(
        demo_file(), list(KEYS), dataset_keys=("actions", "dones"), load_next_obs=True
    )
    with pytest.raises(DatasetError, match="iql learns from transitions"):
        make("iql").process_batch_for_training(plain[np.arange(4)])


def test_next_actions_are_normalized_like_actions(demo_file):
    algo = make("rebrac")
    raw = dataset(algo, demo_file())[np.arange(12)]
    algo.preprocess.normalize_actions = lambda actions, obs=None: actions * 2
    batch = algo.process_batch_for_training(raw)
    torch.testing.assert_close(batch["next_actions"], raw["next_actions"] * 2)


def test_weights_alone_begin_a_new_count():
    first = make("td3_bc")
    first.counters["critic_updates"] = 1
    second = make("td3_bc")
    second.deserialize(first.serialize(), load_optimizers=False)
    assert second.counters["critic_updates"] == 0


def test_networks_learn_in_their_epochs(demo_file):
    section = {"optim_params": {"actor": {"start_epoch": 2}, "critic": {"end_epoch": 2}}}
    algo = make("awac", section)
    batch = algo.process_batch_for_training(dataset(algo, demo_file())[np.arange(8)])
    algo.set_train()
    assert moved_by(algo, batch) == {"critic", "critic_target"}
    assert moved_by(algo, batch, epoch=2) == {"actor"}


@pytest.mark.parametrize("name", ["critic", "actor"])
def test_gradients_are_clipped_by_network(name, demo_file):
    algo = make("iql", {name: {"max_gradient_norm": 0.5, "layer_dims": [16]}}, max_grad_norm=9.0)
    batch = algo.process_batch_for_training(dataset(algo, demo_file())[np.arange(8)])
    batch["actions"] = 1e3 * batch["actions"]
    for critic in (algo.nets["critic"], algo.nets["critic_target"]):
        critic.head.bias.data += 1e3
    info = algo.train_on_batch(batch, 1)
    limits = {"critic": 9.0, "actor": 9.0, "vf": 9.0, name: 0.5}
    limits["vf"] = limits["critic"]  # a value belongs to the critics
    for net, limit in limits.items():
        assert info[f"{net.title()}_Grad_Norms"] > 9.0
        gradients = [p.grad.flatten() for p in algo.nets[net].parameters()]
        assert torch.cat(gradients).norm().item() == pytest.approx(limit, rel=1e-4)
