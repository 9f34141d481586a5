"""Rewards, returns and weights of steps, worked out by hand."""

import numpy as np
import pytest
import torch

from imitate import load_config
from imitate.config.data_needs import Returns
from imitate.config.train import RewardConfig
from imitate.data import SequenceDataset, build_datasets
from imitate.data.batches.rewards import (
    ReturnTable,
    RewardTransform,
    fit_rewards,
    returns_of,
    returns_to_go,
)
from imitate.errors import ConfigError, DatasetError
from imitate.train.setup import resolve
from tests.demo_files import data_config, episode, write_demos

REWARDS = np.array([1.0, 3.0, 2.0, 2.0, 4.0], dtype=np.float32)
START = np.array([0, 2])


def fitted(rewards=REWARDS, **section):
    return fit_rewards(RewardConfig(**section), rewards, START, "d.hdf5")


def write(path, rewards, ends="terminal", filter_keys=None, **steps):
    """Demos with these rewards; x is the number of the demo, a tenth of it the action; steps: a value per demo."""
    ends = [ends] * len(rewards) if isinstance(ends, str) else ends
    demos = []
    for number, (values, end) in enumerate(zip(rewards, ends, strict=True)):
        x = np.full((len(values), 1), number, np.float32)
        more = {key: np.full(len(values), value[number]) for key, value in steps.items()}
        demos.append(
            episode(len(x), {"x": x}, x / 10, end, next_obs={"x": x}, rewards=values, steps=more)
        )
    return write_demos(path, demos, filter_keys=filter_keys)


def config(path, algo_name="iql", **changes):
    return data_config(path, ["x"], algo_name, **changes)


# ---- rewards -------------------------------------------------------------------------------------


def test_locomotions_rewards_have_returns_that_span_a_thousand():
    assert returns_of(REWARDS, START).tolist() == [4.0, 8.0]
    transform = fitted(normalization="return_range", scale=1000.0)
    assert transform.divisor == 4.0
    assert np.ptp(returns_of(transform(REWARDS), START)) == pytest.approx(1000.0)


def test_antmazes_rewards():
    ends = torch.tensor([0.0, 1.0])
    assert fitted(shift=-1.0)(ends).tolist() == [-1.0, 0.0]
    assert fitted(scale=10.0, shift=-5.0)(ends).tolist() == [-5.0, 5.0]


def test_the_standard_deviation_is_divided_by_and_no_mean_is_taken_off():
    transform = fitted(normalization="std")
    assert transform.divisor == pytest.approx(1.0198039)  # sqrt(26 / 25)
    assert transform(REWARDS)[0] == pytest.approx(1.0 / 1.0198039)


def test_limits_come_after_everything_else():
    transform = fitted(scale=10.0, shift=-5.0, clip=(-1.0, 1.0))
    for values in (np.array([0.0, 0.55, 3.0]), torch.tensor([0.0, 0.55, 3.0])):
        assert transform(values).tolist() == pytest.approx([-1.0, 0.5, 1.0])


def test_nothing_to_divide_by_is_said():
    for rewards, normalization, words in (
        ([1, 1, 1, 1, 1], "std", "rewards are equal.*set it to null"),
        ([1, 1, 2, 0, 0], "return_range", "returns of all demos are equal"),
    ):
        with pytest.raises(DatasetError, match=words):
            fitted(np.array(rewards, np.float32), normalization=normalization)
    with pytest.raises(ConfigError, match=r"clip \[1.0, -1.0\]: give the lower limit first"):
        load_config({"algo_name": "iql", "train": {"reward": {"clip": [1.0, -1.0]}}})


@pytest.mark.parametrize("normalization", ["std", "return_range"])
def test_the_smallest_number_that_is_divided_by(normalization):
    small = fitted(np.float32([0, 0, 0, 0, 1e-7]), normalization=normalization)
    assert small.divisor == pytest.approx(1e-7 if normalization == "return_range" else 4e-8)
    with pytest.raises(DatasetError, match=f"train.reward.normalization '{normalization}' has"):
        fitted(np.float32([0, 0, 0, 0, 1e-9]), normalization=normalization)


def test_a_transform_that_changes_nothing():
    assert RewardTransform().is_identity and not RewardTransform(shift=1.0).is_identity
    assert RewardTransform()(REWARDS).tolist() == REWARDS.tolist()
    numbers = {"scale": 2.0, "shift": 1.0, "divisor": 4.0, "clip": (0.0, 3.0)}
    assert RewardTransform(**numbers).to_dict() == numbers
    assert fitted() == RewardTransform(1.0, 0.0, 1.0, None)


def test_validation_rewards_are_divided_by_what_the_training_data_gave(tmp_path):
    masks = {"train": [0, 1], "valid": [2]}
    path = write(tmp_path / "d.hdf5", (REWARDS[:2], REWARDS[2:], [100, 0]), filter_keys=masks)
    section = {"normalization": "return_range", "scale": 8.0}
    train_set, valid_set = build_datasets(config(path, validate=True, reward=section))
    assert train_set.numbers.reward == valid_set.numbers.reward == RewardTransform(8.0, 0.0, 4.0)
    batch = train_set[np.arange(5)]
    assert batch["rewards"][:, 0].tolist() == [2.0, 6.0, 4.0, 4.0, 8.0]
    assert batch["n_step_rewards"].tolist() == [2.0, 6.0, 4.0, 4.0, 8.0]
    assert valid_set[np.arange(2)]["n_step_rewards"].tolist() == [200.0, 0.0]


def test_rewards_that_nobody_uses_are_not_scaled_in_silence(tmp_path):
    path = write(tmp_path / "d.hdf5", [REWARDS])
    scaled = config(path, "bc", reward={"scale": 2.0}, dataset_keys=["dones"])
    with pytest.raises(ConfigError, match="add 'rewards' to train.dataset_keys"):
        build_datasets(scaled)


# ---- returns -------------------------------------------------------------------------------------


@pytest.fixture
def path(tmp_path):
    """A solved and a truncated demo."""
    return write(tmp_path / "d.hdf5", [[0, 0, 4], [1, 2]], ends=["terminal", "timeout"])


def load(path, returns, **options):
    return SequenceDataset(path, obs_keys=("x",), returns=returns, **options)


@pytest.mark.parametrize(
    ("terminals", "how", "values"),
    [
        ([0, 0, 0, 0, 0], {}, [2.5, 3.0, 4.0, 4.0, 4.0]),
        ([1, 0, 0, 1, 0], {}, [1.0, 3.0, 3.0, 2.0, 4.0]),  # what follows does not count
        ([0, 1, 0, 0, 0], {"continue_truncated": True}, [2.5, 3.0, 5.0, 6.0, 8.0]),
    ],
)
def test_returns_to_go(terminals, how, values):
    """Rewards 1, 3 and 2, 2, 4; with discount 0.5 the last one forever is twice as much."""
    found = returns_to_go(REWARDS, np.float32(terminals), START, np.array([2, 5]), 0.5, **how)
    assert found.dtype == np.float32
    assert found.tolist() == values


def test_the_best_return_and_the_largest():
    table = ReturnTable(-REWARDS, np.zeros(5, np.float32), START, np.array([2, 5]), Returns(1.0))
    assert (table.best, table.largest) == (-4.0, 8.0)
    assert table.at(np.array([[0, 4]]))["step"].tolist() == [[0, 2]]


def test_returns_and_step_numbers_of_every_step(path):
    dataset = load(path, Returns(discount=0.5))
    batch = dataset[np.arange(5)]
    assert batch["returns"][:, 0].tolist() == [1.0, 2.0, 4.0, 2.0, 2.0]
    assert batch["step"][:, 0].tolist() == [0, 1, 2, 0, 1]
    # best: of whole demos; largest: of any step
    assert (dataset.numbers.returns.best, dataset.numbers.returns.largest) == (2.0, 4.0)
    assert not {"returns", "step"} & set(load(path, None)[np.arange(2)])


def test_a_truncated_demo_goes_on_and_a_solved_one_does_not(path):
    batch = load(path, Returns(discount=0.5, continue_truncated=True))[np.arange(5)]
    # 2 for ever at discount 0.5 is 4.
    assert batch["returns"][:, 0].tolist() == [1.0, 2.0, 4.0, 3.0, 4.0]


def test_windows_repeat_the_ends_of_a_demo(path):
    dataset = load(path, Returns(discount=1.0), frame_stack=2, seq_length=2, get_pad_mask=True)
    batch = dataset[np.array([0, 2, 3])]
    assert batch["returns"].tolist() == [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0], [3.0, 3.0, 2.0]]
    assert batch["step"].tolist() == [[0, 0, 1], [1, 2, 2], [0, 0, 1]]


SCALED = {"scale": 10.0, "shift": -1.0}


def test_values_are_learned_of_the_scaled_rewards(path):
    algo = {"discount": 0.5, "continue_truncated": False}
    wanted = config(path, "cal_ql", algo=algo, reward=SCALED)
    dataset, _ = build_datasets(resolve(wanted, None, None))
    # 39, -1 + 39/2, -1 - 1/2 + 39/4 from the end on; 19, 9 + 19/2.
    expected = [8.25, 18.5, 39.0, 18.5, 19.0]
    assert dataset[np.arange(5)]["returns"][:, 0].tolist() == expected


def test_a_decision_transformer_counts_rewards_as_a_rollout_does(path):
    dataset, _ = build_datasets(config(path, "dt", reward=SCALED))
    assert dataset[np.arange(5)]["returns"][:, -1].tolist() == [4.0, 4.0, 4.0, 3.0, 2.0]
    numbers = load_config({"algo_name": "dt"}).algo.values_from_data(dataset)
    assert numbers == {"target_return": 4.0, "return_scale": 4.0}
    given = {"target_return": 1.0, "return_scale": 2.0}
    assert config(path, "dt", algo=given).algo.values_from_data(dataset) == {}


# ---- weights -------------------------------------------------------------------------------------

LENGTHS = (4, 5, 4, 3)


def at_the_end(path, returns=(0.0, 3.0, 1.0, 3.0), lengths=LENGTHS, **steps):
    """Demos of these lengths, whose last step alone has a reward."""
    pairs = zip(returns, lengths, strict=True)
    return write(path, [[0.0] * (length - 1) + [total] for total, length in pairs], **steps)


def build(*paths, **train):
    return build_datasets(config([{"path": str(path)} for path in paths], "bc", **train))[0]


@pytest.mark.parametrize(
    ("fraction", "kept"),
    # Of the two best the shorter at 0.3; one at least.
    [(1.0, [0, 1, 2, 3]), (0.75, [1, 2, 3]), (0.5, [1, 3]), (0.3, [3]), (0.01, [3])],
)
def test_the_best_demos_are_kept(tmp_path, fraction, kept):
    dataset = build(at_the_end(tmp_path / "d.hdf5"), filter_best=fraction)
    assert dataset.demos == [f"demo_{number}" for number in kept]
    if kept == [3]:
        assert dataset.statistics()["obs"]["x"].mean.tolist() == [3.0], "of what is trained on"


def test_the_best_of_all_files_together(tmp_path):
    good = at_the_end(tmp_path / "good.hdf5", returns=(5.0, 6.0), lengths=(3, 3))
    bad = at_the_end(tmp_path / "bad.hdf5", returns=(0.0, 1.0), lengths=(3, 3))
    assert build(bad, good, filter_best=0.5).demos == ["good.hdf5/demo_0", "good.hdf5/demo_1"]
    assert len(build(bad, good, filter_best=0.75)) == 9


def test_demos_weigh_by_their_return(tmp_path):
    section = {"kind": "return", "temperature": 0.5}
    weight = build(at_the_end(tmp_path / "d.hdf5"), sample_weight=section)[np.arange(16)]["weight"]
    # returns 0, 1, 1/3, 1 of the way from worst to best
    raw = np.repeat(np.exp(2.0 * np.array([0.0, 1.0, 1 / 3, 1.0])), LENGTHS)
    np.testing.assert_allclose(weight[:, 0].numpy(), raw / raw.mean(), rtol=1e-6)


def test_steps_weigh_by_what_is_to_come(tmp_path):
    path = at_the_end(tmp_path / "d.hdf5", returns=(0.0, 1.0), lengths=(2, 3))
    section = {"kind": "return_to_go", "temperature": 1.0, "discount": 0.5}
    weight = build(path, sample_weight=section)[np.arange(5)]["weight"][:, 0].numpy()
    raw = np.exp([0.0, 0.0, 0.25, 0.5, 1.0])
    np.testing.assert_allclose(weight, raw / raw.mean(), rtol=1e-6)


def test_weights_of_the_file(tmp_path):
    path = at_the_end(tmp_path / "d.hdf5", progress=(0.0, 1.0, 3.0, 0.0))
    dataset = build(path, sample_weight={"kind": "key", "key": "progress"}, seq_length=3)
    batch = dataset[np.array([0, 4, 13])]
    # mean over 16 steps: (5 * 1 + 4 * 3) / 16
    np.testing.assert_allclose(batch["weight"][1].numpy(), 16 / 17, rtol=1e-6)
    assert batch["weight"].shape == (3, 3)
    assert batch["weight"][[0, 2]].tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("section", "error", "words"),
    [
        ({"kind": "key", "key": "progress"}, DatasetError, "not all 0; found values from -1 to 3"),
        ({"kind": "key"}, ConfigError, "set both or neither"),
        ({"kind": "key", "key": "progres"}, DatasetError, "progres"),
        ({"kind": "interventions"}, DatasetError, "0 everywhere"),
    ],
)
def test_bad_weights_are_refused(tmp_path, section, error, words):
    path = at_the_end(tmp_path / "d.hdf5", progress=(0.0, -1.0, 3.0, 0.0), interventions=(0,) * 4)
    with pytest.raises(error, match=words):
        build(path, sample_weight=section)


@pytest.mark.parametrize(
    ("share", "expected"),
    # Five steps of sixteen by hand.
    [(0.0, {0.0: 0.0, 1.0: 16 / 5}), (0.5, {0.0: 0.5 * 16 / 11, 1.0: 0.5 * 16 / 5})],
)
def test_interventions(tmp_path, share, expected):
    path = at_the_end(tmp_path / "d.hdf5", interventions=(0, 1, 0, 0))
    dataset = build(path, sample_weight={"kind": "interventions", "policy_share": share})
    batch = dataset.__getitems__(list(range(len(dataset))))[0]
    by_hand = dataset.numbers.array("interventions").reshape(-1)
    for kind, weight in expected.items():
        np.testing.assert_allclose(batch["weight"][:, 0][by_hand == kind], weight, rtol=1e-6)


def test_without_interventions_a_demonstration_is_all_by_hand(tmp_path):
    corrected = at_the_end(tmp_path / "d.hdf5", interventions=(0, 1, 0, 0))
    plain = at_the_end(tmp_path / "e.hdf5")
    section = {"kind": "interventions"}
    dataset = build(plain, corrected, sample_weight=section)
    by_hand = dataset.numbers.array("interventions").reshape(-1)
    half = len(by_hand) // 2
    assert by_hand[:half].all() and 0 < by_hand[half:].sum() < half
    assert "weight" not in build(plain, sample_weight=section).__getitems__([0, 5])[0]


def test_demonstrations_alone_count_alike(tmp_path):
    path = at_the_end(tmp_path / "d.hdf5", interventions=(1, 1, 1, 1))
    batch = build(path, sample_weight={"kind": "interventions"}).__getitems__([0, 5])[0]
    assert "weight" not in batch
