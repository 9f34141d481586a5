import numpy as np
import pytest
import torch

from imitate.data.rewards import RewardTransform
from imitate.models.preprocess import Preprocess
from imitate.online.normalization import ObsNormalizer, RewardScaler, RunningMoments


def test_moments_of_parts_are_those_of_the_whole():
    rng = np.random.default_rng(0)
    rows = rng.normal(1e3, [1.0, 5.0], size=(500, 2))
    moments = RunningMoments((2,))
    for part in np.split(rows, [1, 7, 300]):
        moments.add(part)
    moments.add(rows[:0])
    np.testing.assert_allclose(moments.mean, rows.mean(0))
    np.testing.assert_allclose(moments.std, rows.std(0))
    other = RunningMoments((2,))
    other.load_state_dict(moments.state_dict())
    assert np.array_equal(other.std, moments.std) and other.count == 500


def test_networks_see_normalized_observations():
    normalizer = ObsNormalizer({"s": (1,)})
    normalizer.add({"s": np.array([[1.0], [5.0]], np.float32), "other": np.zeros(3)})
    preprocess = Preprocess.layout_only(
        {"s": (1,), "t": (1,)}, {"s": "low_dim", "t": "low_dim"}, {"actions": 1}
    )
    raw = {"s": np.array([[7.0]]), "t": np.array([[7.0]])}
    preprocess.prepare_obs(raw)
    normalizer.apply(preprocess)
    prepared = preprocess.prepare_obs(raw)
    assert prepared["s"].item() == 2.0 and prepared["t"].item() == 7.0
    again = Preprocess.from_dict(preprocess.to_dict())
    assert again.prepare_obs({k: torch.as_tensor(v) for k, v in raw.items()})["s"].item() == 2.0


def test_rewards_are_divided_by_the_spread_of_running_returns():
    scaler = RewardScaler(RewardTransform(), 2, discount=0.5)
    rewards = np.array([[1.0], [1.0], [4.0]], np.float32)
    ends = np.array([[False], [True], [False]])
    scaled = scaler(rewards, ends, np.array([1]))
    # Running returns 1, 1.5, and 4 in a new episode.
    spread = np.std([1.0, 1.5, 4.0])
    assert scaled[:, 0].tolist() == pytest.approx((rewards[:, 0] / spread).tolist())
    following = scaler(np.zeros((1, 1), np.float32), np.array([[False]]), np.array([1]))
    assert following.item() == 0 and scaler.state_dict()["returns"] == [0.0, 2.0]


def test_fixed_scale_and_shift():
    assert (
        RewardScaler(RewardTransform(2.0, -1.0), 1)(
            np.array([[3.0]], np.float32), np.array([[True]]), np.array([0])
        ).item()
        == 5.0
    )


def test_rewards_are_clipped_last():
    scaler = RewardScaler(RewardTransform(2.0, -1.0, clip=(-1.0, 4.0)), 1)
    rewards = np.array([[3.0], [-1.0], [1.0]], np.float32)
    scaled = scaler(rewards, np.zeros((3, 1), dtype=np.bool_), np.array([0]))
    assert scaled[:, 0].tolist() == [4.0, -1.0, 1.0]
