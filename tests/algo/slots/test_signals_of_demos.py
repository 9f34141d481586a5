"""Named rewards of demonstrations: written, edited, read, and the same in batches of a file and of a replay buffer."""

import h5py
import numpy as np
import pytest

from imitate.config.data_needs import Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.sequence_dataset import SequenceDataset
from imitate.data.batches.store import DataSource
from imitate.data.edit.rewrite import FileChanges, Rows, rewrite
from imitate.data.file.episode import Episode
from imitate.data.file.writer import DatasetWriter
from imitate.data.shards.data_files import DataFiles
from imitate.errors import ConfigError, DatasetError
from imitate.train.online.demonstrations import load_demonstrations, write_demonstrations
from tests.refusals import refused
from tests.tiny import tiny_config

COST = [1.0, 2.0, 4.0, 8.0]
ARRAYS = ("rewards", "signals/cost")
TWO_STEPS = Transitions(0.5, 2, signals=ARRAYS, signal_discounts=(0.5, 0.1))
SUMS = [[0.0, 1.2], [0.5, 2.4], [1.0, 4.0], [0.0, 8.0]]
"""By hand: r = (0, 0, 1, 0) with discount 0.5 and the costs with 0.1; step 2 is terminal, step 3 the last."""
AFTER = [[0.25, 0.01], [0.0, 0.0], [0.0, 0.0], [0.5, 0.1]]


def episode(**changes):
    places = np.arange(5, dtype=np.float32)[:, None]
    words = {
        "obs": {"s": places[:-1]},
        "next_obs": {"s": places[1:]},
        "actions": np.zeros((4, 1)),
        "rewards": [0, 0, 1, 0],
        "terminals": [0, 0, 1, 0],
        "timeouts": [0, 0, 0, 1],
        "steps": {"signals/cost": np.array(COST)},
    }
    return Episode(**{**words, **changes})


@pytest.fixture
def file(tmp_path):
    with DatasetWriter(tmp_path / "demos.hdf5", {"env_name": "line"}) as writer:
        writer.append_episode(episode())
    return tmp_path / "demos.hdf5"


def replay_of(path, wanted=TWO_STEPS, **words):
    with DataFiles() as files:
        return load_demonstrations(
            [DataSource(path, None)],
            {"s": (1,)},
            1,
            files,
            transitions=wanted,
            reward=RewardTransform(),
            **words,
        )


def numbers(batch):
    names = "n_step_signals", "signal_discounts"
    return [np.asarray(batch[name], np.float64).round(5).tolist() for name in names]


def test_batches_of_a_file_and_of_a_replay_buffer_have_the_same_sums(file):
    memory, dataset = replay_of(file), SequenceDataset(file, ["s"], transitions=TWO_STEPS)
    read, replayed = dataset[np.arange(4)], memory.at(np.flatnonzero(memory.live))
    assert numbers(read) == numbers(replayed) == [SUMS, AFTER]
    assert read["n_step_rewards"].tolist() == replayed["n_step_rewards"].tolist()
    assert read["signals/cost"].flatten().tolist() == COST


def test_a_replay_buffer_is_written_with_its_signals(file, tmp_path):
    memory = replay_of(file)
    write_demonstrations(memory, tmp_path / "again.hdf5", {"env_name": "line"})
    assert np.array_equal(replay_of(tmp_path / "again.hdf5").signals, memory.signals)
    with h5py.File(tmp_path / "again.hdf5") as again:
        assert again["data/demo_0/signals/cost"][()].tolist() == COST


def test_an_episode_that_ends_at_success_has_as_many_signals(file):
    memory = replay_of(file, end_at_success=True)
    assert memory.signals[memory.live, 1].tolist() == COST[:3]


def test_steps_are_written_with_signals(tmp_path):
    path = tmp_path / "steps.hdf5"
    with DatasetWriter(path, {"env_name": "line"}) as writer:
        writer.start_episode()
        for cost in COST:
            writer.append(obs={"s": [0.0]}, action=[0.0], signals={"cost": cost})
        with refused("'signals/cost' is missing"):
            writer.append(obs={"s": [0.0]}, action=[0.0])
        writer.finish_episode()
    with h5py.File(path) as file:
        assert file["data/demo_0/signals/cost"].dtype == np.float32
        assert file["data/demo_0/signals/cost"][()].tolist() == COST
    with DatasetWriter(tmp_path / "bad.hdf5", {"env_name": "line"}) as writer:
        wide = {"signals/cost": np.zeros((4, 2))}
        with refused("'signals/cost' has shape (4, 2): expected (T,)"):
            writer.append_episode(episode(steps=wide))
        writer.append_episode(episode())


def test_rows_that_are_cut_are_cut_from_signals(file, tmp_path):
    first = np.array([0, 1])
    rewrite(file, tmp_path / "cut.hdf5", FileChanges(rows={"demo_0": Rows(first, first)}))
    with h5py.File(tmp_path / "cut.hdf5") as cut:
        assert cut["data/demo_0/signals/cost"][()].tolist() == COST[:2]


@pytest.mark.parametrize("read", ["replay", "dataset"])
def test_a_file_without_a_named_reward_is_refused(file, read):
    wanted = Transitions(signals=("signals/force",), signal_discounts=(0.9,))
    words = "demo 'demo_0' has no 'signals/force'|it has: cost|imitate collect --signals force|rename-key"
    with refused(words, error=DatasetError):
        if read == "replay":
            replay_of(file, wanted)
        else:
            SequenceDataset(file, ["s"], transitions=wanted)


def test_sources_are_arrays_of_demos():
    rewards = {
        "task": {"source": "reward"},
        "cost": {"source": "info:cost", "weight": -1},
        "part": {"source": "reward:1", "weight": 2},
    }
    config = tiny_config("iql", obs={"s": 1}, algo={"rewards": rewards})
    assert config.algo.data_needs(config).transitions.signals == (*ARRAYS, "signals/reward:1")
    with refused("multipliers of bounds (cost) follow the steps", error=ConfigError):
        bounded = {"cost": {"source": "info:cost", "at_most": 1.0}}
        tiny_config("iql", obs={"s": 1}, algo={"rewards": bounded})
