import numpy as np
import pytest
import torch

from imitate.data.batches.rewards import RewardTransform
from imitate.models.preprocess import Preprocess
from imitate.system.ranks import Ranks
from imitate.train.online.learners import ReplayLearner
from imitate.train.online.normalization import ObsNormalizer, RewardScaler, RunningMoments
from imitate.train.online.replay import ReplayBuffer
from imitate.train.online.steps import Collected, Step

from .worlds import make_algo


def test_moments_of_parts_are_those_of_the_whole():
    rows = np.random.default_rng(0).normal(1e3, [1.0, 5.0], size=(500, 2))
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
    preprocess = Preprocess(
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
    scaled = scaler(rewards, np.array([[False], [True], [False]]), np.array([1]))
    # Running returns 1, 1.5, and 4 in a new episode.
    spread = np.std([1.0, 1.5, 4.0])
    assert scaled[:, 0].tolist() == pytest.approx((rewards[:, 0] / spread).tolist())
    following = scaler(np.zeros((1, 1), np.float32), np.array([[False]]), np.array([1]))
    assert following.item() == 0 and scaler.state_dict()["returns"] == [0.0, 2.0]


def test_a_resumed_scaler_goes_on_with_the_returns_and_their_spread():
    first, again = (RewardScaler(RewardTransform(), 2, discount=0.5) for _ in range(2))
    none, lanes = np.zeros((1, 2), bool), np.arange(2)
    first(np.array([[4.0, 8.0]], np.float32), none, lanes)
    again.load_state_dict(first.state_dict())
    # Returns are 4, 8 and then 1 + 2, 1 + 4.
    scaled = again(np.ones((1, 2), np.float32), none, lanes)
    assert scaled[0].tolist() == pytest.approx([1 / np.std([4.0, 8.0, 3.0, 5.0])] * 2)


class OfThree(Ranks):
    """The first of three processes; the second has seen two rows of 5 and 9, the third nothing."""

    def table(self, values):
        (one,) = np.asarray(values)[None]
        return np.array([one, [2.0, 7.0, 8.0], [0.0, 0.0, 0.0]])


def test_what_other_processes_have_seen_counts_too():
    normalizer = ObsNormalizer({"s": (1,)}, ranks=OfThree(world=3))
    normalizer.add({"s": np.array([[1.0], [1.0]])})
    moments = normalizer.state_dict()["moments"]["s"]
    assert (moments["count"], moments["mean"]) == (4, [4.0])
    assert moments["squares"] == [9.0 + 9.0 + 1.0 + 25.0]
    assert normalizer.has_grown and normalizer.count == 4


def test_two_rows_have_a_deviation_and_one_has_not():
    moments = RunningMoments((1,))
    moments.add(np.array([[3.0]]))
    assert moments.std.tolist() == [1.0]
    moments.add(np.array([[7.0]]))
    assert moments.std.tolist() == [2.0]


def test_returns_of_what_is_no_experience_do_not_count():
    scaler = RewardScaler(RewardTransform(), 1, discount=0.5)
    rewards = np.array([[2.0], [6.0], [0.0], [0.0]], np.float32)
    ends = np.array([[True], [True], [True], [True]])
    mask = np.array([[True], [True], [False], [False]])
    scaled = scaler(rewards, ends, np.array([0]), mask)
    assert scaled[:, 0].tolist() == [1.0, 3.0, 0.0, 0.0]  # the spread of 2 and 6


def test_rewards_are_scaled_shifted_and_clipped_last():
    scaler = RewardScaler(RewardTransform(2.0, -1.0, clip=(-1.0, 4.0)), 1)
    rewards = np.array([[3.0], [-1.0], [1.0]], np.float32)
    scaled = scaler(rewards, np.zeros((3, 1), dtype=np.bool_), np.array([0]))
    assert scaled[:, 0].tolist() == [4.0, -1.0, 1.0]


def learner_of(is_running):
    algo = make_algo()
    memory = ReplayBuffer({"place": (1,)}, 1, 1000)
    normalizer = ObsNormalizer({"place": (1,)}, is_running=is_running)
    learner = ReplayLearner(
        algo,
        memory,
        memory,
        batch_size=4,
        update_ratio=0.0,
        warmup_steps=100,
        obs_normalizer=normalizer,
    )
    return learner, algo


def seen(places):
    rows = np.asarray(places, np.float32)[:, None, None]
    none = np.zeros(1, bool)
    zeros = np.zeros(1, np.float32)
    steps = [Step({"place": row}, row, zeros, none, none, {"place": row}) for row in rows]
    return Collected(steps, np.array([0]), [])


def test_steps_that_were_not_taken_are_not_seen():
    """An agent that waits for the others shows zeros."""
    learner, algo = learner_of(True)
    collected = seen([9.0, 11.0] * 50 + [0.0] * 900)
    for number, step in enumerate(collected.steps):
        object.__setattr__(step, "lost", np.array([number >= 100]))
    learner.take(collected)
    assert affine(algo) == (10.0, 1.0)


def affine(algo):
    (offset,), (scale,) = algo.preprocess.offset.tolist(), algo.preprocess.scale.tolist()
    return pytest.approx((offset, scale), rel=1e-5)


def test_statistics_of_replay_follow_what_is_seen_after_the_warmup_or_stay():
    """Random actions stay at -1 and 1; what is learned leads to 9 and 11."""
    for is_running in (True, False):
        learner, algo = learner_of(is_running)
        learner.take(seen([-1.0, 1.0] * 50))
        assert affine(algo) == (0.0, 1.0)
        learner.take(seen([9.0, 11.0] * 150))
        # Mean 7.5; variance 1 + 0.25 * 7.5 ** 2 + 0.75 * 2.5 ** 2 = 19.75.
        assert affine(algo) == ((7.5, 19.75**0.5) if is_running else (0.0, 1.0))


def test_running_statistics_are_applied_when_they_have_grown_and_resumed_as_they_were():
    learner, algo = learner_of(True)
    learner.take(seen([-1.0, 1.0] * 50))
    learner.take(seen([100.0]))
    assert affine(algo) == (0.0, 1.0)  # 101 steps are 1 % more than 100, not yet above
    again, copy = learner_of(True)
    again.load_state_dict(learner.state_dict())
    copy.preprocess = Preprocess.from_dict(algo.preprocess.to_dict())
    for one, its_algo in ((learner, algo), (again, copy)):
        one.take(seen([2.0]))
        assert affine(its_algo) == (1.0, np.std([-1.0, 1.0] * 50 + [100.0, 2.0]))
    assert learner.state_dict() == again.state_dict()


def test_runs_that_began_with_statistics_of_the_warmup_keep_them():
    learner, _ = learner_of(True)
    learner.take(seen([-1.0, 1.0] * 50))
    saved = learner.state_dict()
    older, algo = learner_of(True)
    older.load_state_dict({**saved, "obs": saved["obs"]["moments"]})
    older.take(seen([50.0] * 100))
    assert affine(algo) == (0.0, 1.0)


def test_returns_that_do_not_spread_are_divided_by_a_millionth():
    scaler = RewardScaler(RewardTransform(), 2, discount=0.5)
    found = scaler(np.full((1, 2), 2e-6), np.ones((1, 2), bool), np.arange(2))
    assert found == pytest.approx(2.0, rel=1e-6) and found.dtype == np.float32
