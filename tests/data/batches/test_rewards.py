import numpy as np
import pytest
import torch

from imitate import load_config
from imitate.config.train import RewardConfig
from imitate.data import DatasetWriter, Episode, build_datasets
from imitate.data.batches.rewards import RewardTransform, fit_rewards, returns_of
from imitate.errors import ConfigError, DatasetError

REWARDS = np.array([1.0, 3.0, 2.0, 2.0, 4.0], dtype=np.float32)
START = np.array([0, 2])


def fitted(rewards=REWARDS, **section):
    return fit_rewards(RewardConfig(**section), rewards, START, "d.hdf5")


def test_returns():
    assert returns_of(REWARDS, START).tolist() == [4.0, 8.0]


def test_locomotions_rewards_have_returns_that_span_a_thousand():
    transform = fitted(normalization="return_range", scale=1000.0)
    assert transform.divisor == 4.0
    assert np.ptp(returns_of(transform(REWARDS), START)) == pytest.approx(1000.0)


def test_antmazes_rewards():
    torch.testing.assert_close(
        fitted(shift=-1.0)(torch.tensor([0.0, 1.0])), torch.tensor([-1.0, 0.0])
    )
    torch.testing.assert_close(
        fitted(scale=10.0, shift=-5.0)(torch.tensor([0.0, 1.0])), torch.tensor([-5.0, 5.0])
    )


def test_the_standard_deviation_is_divided_by_and_no_mean_is_taken_off():
    transform = fitted(normalization="std")
    assert transform.divisor == pytest.approx(1.0198039)  # sqrt(26 / 25)
    assert transform(REWARDS)[0] == pytest.approx(1.0 / 1.0198039)


def test_limits_come_after_everything_else():
    transform = fitted(scale=10.0, shift=-5.0, clip=(-1.0, 1.0))
    assert transform(np.array([0.0, 0.55, 3.0])).tolist() == pytest.approx([-1.0, 0.5, 1.0])
    assert transform(torch.tensor([0.0, 0.55, 3.0])).tolist() == pytest.approx([-1.0, 0.5, 1.0])


def test_limits_have_an_order():
    with pytest.raises(ConfigError, match=r"clip \[1.0, -1.0\] wants the lower limit first"):
        load_config({"algo_name": "iql", "train": {"reward": {"clip": [1.0, -1.0]}}})


def test_nothing_to_divide_by_is_said():
    alike = np.ones(5, dtype=np.float32)
    with pytest.raises(DatasetError, match="rewards are equal.*set it to null"):
        fitted(alike, normalization="std")
    with pytest.raises(DatasetError, match="returns of all demos are equal"):
        fitted(np.array([1, 1, 2, 0, 0], dtype=np.float32), normalization="return_range")


def write(path):
    masks = {"train": ["demo_0", "demo_1"], "valid": ["demo_2"]}
    with DatasetWriter(path, {"env_name": "Toy", "type": 2, "env_kwargs": {}}) as writer:
        for rewards in (REWARDS[:2], REWARDS[2:], np.array([100.0, 0.0], dtype=np.float32)):
            length = len(rewards)
            last = np.arange(length) == length - 1
            x = np.zeros((length, 1), dtype=np.float32)
            flags = {"terminals": last, "timeouts": ~last & False}
            writer.append_episode(
                Episode(obs={"x": x}, next_obs={"x": x}, actions=x, rewards=rewards, **flags)
            )
        for name, demos in masks.items():
            writer.add_filter_key(name, demos)
    return path


def config(path, algo_name="iql", **train):
    return load_config(
        {
            "algo_name": algo_name,
            "experiment": {"validate": True},
            "train": {"data": str(path), "hdf5_validation_filter_key": "valid", **train},
            "observation": {"modalities": {"obs": {"low_dim": ["x"]}}},
        }
    )


def test_validation_rewards_are_divided_by_what_the_training_data_gave(tmp_path):
    section = {"normalization": "return_range", "scale": 8.0}
    train_set, valid_set = build_datasets(config(write(tmp_path / "d.hdf5"), reward=section))
    assert train_set.numbers.reward == valid_set.numbers.reward == RewardTransform(8.0, 0.0, 4.0)
    batch = train_set[np.arange(5)]
    assert batch["rewards"][:, 0].tolist() == [2.0, 6.0, 4.0, 4.0, 8.0]
    assert batch["n_step_rewards"].tolist() == [2.0, 6.0, 4.0, 4.0, 8.0]
    assert valid_set[np.arange(2)]["n_step_rewards"].tolist() == [200.0, 0.0]


def test_rewards_that_nobody_uses_are_not_scaled_in_silence(tmp_path):
    scaled = config(write(tmp_path / "d.hdf5"), "bc", reward={"scale": 2.0}, dataset_keys=["dones"])
    with pytest.raises(ConfigError, match="add 'rewards' to train.dataset_keys"):
        build_datasets(scaled)
