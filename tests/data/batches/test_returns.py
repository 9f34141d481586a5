"""Returns in batches, from a file with a solved and a truncated demo."""

import numpy as np
import pytest

from imitate.config import load_config
from imitate.config.data_needs import Returns
from imitate.data import DatasetWriter, Episode, SequenceDataset
from imitate.data.batches.build import build_datasets
from imitate.train.setup import resolve

META = {"type": 2, "env_name": "none", "env_kwargs": {}}
REWARDS = [[0.0, 0.0, 4.0], [1.0, 2.0]]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "demos.hdf5"
    with DatasetWriter(path, META) as writer:
        for rewards, is_solved in zip(REWARDS, (True, False), strict=True):
            last = np.arange(len(rewards)) == len(rewards) - 1
            writer.append_episode(
                Episode(
                    {"state": np.zeros((len(rewards), 1), np.float32)},
                    np.zeros((len(rewards), 2), np.float32),
                    np.array(rewards, np.float32),
                    last & is_solved,
                    last & (not is_solved),
                )
            )
    return path


def load(path, returns, **options):
    return SequenceDataset(path, obs_keys=("state",), returns=returns, **options)


def test_returns_and_step_numbers_of_every_step(path):
    batch = load(path, Returns(discount=0.5))[np.arange(5)]
    assert batch["returns"][:, 0].tolist() == [1.0, 2.0, 4.0, 2.0, 2.0]
    assert batch["step"][:, 0].tolist() == [0, 1, 2, 0, 1]


def test_a_truncated_demo_goes_on_and_a_solved_one_does_not(path):
    batch = load(path, Returns(discount=0.5, continue_truncated=True))[np.arange(5)]
    # 2 for ever at discount 0.5 is 4.
    assert batch["returns"][:, 0].tolist() == [1.0, 2.0, 4.0, 3.0, 4.0]


def test_windows_repeat_the_ends_of_a_demo(path):
    dataset = load(path, Returns(discount=1.0), frame_stack=2, seq_length=2, get_pad_mask=True)
    batch = dataset[np.array([0, 2, 3])]
    assert batch["returns"].tolist() == [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0], [3.0, 3.0, 2.0]]
    assert batch["step"].tolist() == [[0, 0, 1], [1, 2, 2], [0, 0, 1]]


def test_best_is_of_whole_demos_and_largest_of_any_step(path):
    table = load(path, Returns(discount=0.5)).numbers.returns
    assert table.best == 2.0
    assert table.largest == 4.0


def test_nothing_is_added_where_nothing_is_asked(path):
    batch = load(path, None)[np.arange(2)]
    assert "returns" not in batch
    assert "step" not in batch


def config_for(path, algo_name, **algo):
    return load_config(
        {
            "algo_name": algo_name,
            "algo": algo,
            "train": {"data": str(path), "reward": {"scale": 10.0, "shift": -1.0}},
            "observation": {"modalities": {"obs": {"low_dim": ["state"]}}},
        }
    )


def test_values_are_learned_of_the_scaled_rewards(path):
    config = config_for(path, "cal_ql", discount=0.5, continue_truncated=False)
    dataset, _ = build_datasets(resolve(config, None, None))
    # 39, -1 + 39/2, -1 - 1/2 + 39/4 from the end on; 19, 9 + 19/2.
    expected = [8.25, 18.5, 39.0, 18.5, 19.0]
    assert dataset[np.arange(5)]["returns"][:, 0].tolist() == expected


def test_a_decision_transformer_counts_rewards_as_a_rollout_does(path):
    dataset, _ = build_datasets(config_for(path, "dt"))
    assert dataset[np.arange(5)]["returns"][:, -1].tolist() == [4.0, 4.0, 4.0, 3.0, 2.0]
    numbers = load_config({"algo_name": "dt"}).algo.values_from_data(dataset)
    assert numbers == {"target_return": 4.0, "return_scale": 4.0}
    given = {"target_return": 1.0, "return_scale": 2.0}
    assert config_for(path, "dt", **given).algo.values_from_data(dataset) == {}
