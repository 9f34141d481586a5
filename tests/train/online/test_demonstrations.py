from contextlib import nullcontext
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from imitate.config.data_needs import Transitions
from imitate.data.batches.rewards import RewardTransform
from imitate.data.batches.store import DataSource
from imitate.data.file.episode import Episode
from imitate.data.file.writer import DatasetWriter
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.system.ranks import Ranks
from imitate.train.online import demonstrations as module
from imitate.train.online.demonstrations import (
    load_demonstrations,
    read_episode,
    up_to_success,
    write_demonstrations,
)
from imitate.train.online.learners import MixedBuffer
from imitate.train.online.replay import ReplayBuffer, SequenceReplay


def write(path, *, next_obs=True):
    with DatasetWriter(path, {"env_name": "line"}) as writer:
        for start, ends in ((0.0, [0, 0, 1]), (10.0, [0, 0])):
            length = len(ends)
            places = start + np.arange(length + 1, dtype=np.float32)[:, None]
            writer.append_episode(
                Episode(
                    obs={"s": places[:-1]},
                    actions=np.full((length, 1), 0.5),
                    rewards=np.arange(length) + 1.0,
                    terminals=np.array(ends),
                    timeouts=np.zeros(length),
                    next_obs={"s": places[1:]} if next_obs else None,
                )
            )
    return path


def load(path, shape=(1,), **kwargs):
    words = {"transitions": Transitions(discount=0.5), "reward": RewardTransform(), **kwargs}
    with DataFiles() as files:
        return load_demonstrations([DataSource(path, None)], {"s": shape}, 1, files, **words)


def table(memory):
    batch = memory.at(np.flatnonzero(memory.live))
    columns = (
        batch["obs"]["s"],
        batch["n_step_rewards"],
        batch["discounts"],
        batch["next_obs"]["s"],
    )
    return [tuple(float(x.flatten()[i]) for x in columns) for i in range(len(batch["index"]))]


@pytest.mark.parametrize(
    ("rewards", "kept", "last_discount"),
    [
        ([0, 0, 1, 1], 3, 0.0),  # success at the third step
        ([0, 0, 0, 0], 4, 0.5),  # none
        ([0, 0.5, 1, 0], 4, 0.5),  # rewards of another kind, which say nothing of success
    ],
)
def test_demos_end_at_success_where_rollouts_do(tmp_path, rewards, kept, last_discount):
    places = np.arange(5, dtype=np.float32)[:, None]
    with DatasetWriter(tmp_path / "demos.hdf5", {"env_name": "line"}) as writer:
        writer.append_episode(
            Episode(
                obs={"s": places[:-1]},
                next_obs={"s": places[1:]},
                actions=np.zeros((4, 1)),
                rewards=np.array(rewards, dtype=np.float32),
                terminals=np.zeros(4),
                timeouts=np.array([0, 0, 0, 1]),
            )
        )
    assert len(load(tmp_path / "demos.hdf5")) == 4
    rows = table(load(tmp_path / "demos.hdf5", end_at_success=True))
    assert [row[0] for row in rows] == list(range(kept))
    assert rows[-1] == (kept - 1, rewards[kept - 1], last_discount, kept)


def test_a_file_is_a_memory(tmp_path):
    memory = load(write(tmp_path / "demos.hdf5"))
    assert table(memory) == [
        (0, 1, 0.5, 1),
        (1, 2, 0.5, 2),
        (2, 3, 0.0, 3),
        (10, 1, 0.5, 11),
        (11, 2, 0.5, 12),
    ]


def test_without_next_observations_the_last_step_before_a_timeout_is_unknown(tmp_path):
    memory = load(write(tmp_path / "demos.hdf5", next_obs=False))
    assert [row[0] for row in table(memory)] == [0, 1, 2, 10]
    assert table(memory)[3] == (10, 1, 0.5, 11)


def test_a_memory_is_a_file(tmp_path):
    memory = load(write(tmp_path / "demos.hdf5"))
    assert write_demonstrations(memory, tmp_path / "again.hdf5", {"env_name": "line"}) == 2
    assert table(load(tmp_path / "again.hdf5")) == table(memory)


def test_demos_of_another_environment_are_refused(tmp_path):
    path = write(tmp_path / "demos.hdf5")
    with pytest.raises(
        DatasetError, match=r"'obs/s' has shape \(1,\) per step, but the environment gives \(2,\)"
    ):
        load(path, shape=(2,))


def test_ranks_share_the_demos_of_all_files(tmp_path):
    """Two files of two demos, which begin at 0 and 10."""
    paths = [write(tmp_path / name) for name in ("a.hdf5", "b.hdf5")]

    def starts(rank, world, paths):
        with DataFiles() as files:
            sources = [DataSource(path, None) for path in paths]
            words = {"transitions": Transitions(), "reward": RewardTransform()}
            ranks = Ranks(rank, world)
            memory = load_demonstrations(sources, {"s": (1,)}, 1, files, ranks=ranks, **words)
        return [float(episode.obs["s"][0, 0]) for episode in memory.episodes()]

    assert [starts(rank, 2, paths) for rank in range(2)] == [[0, 0], [10, 10]]
    assert [starts(rank, 3, paths) for rank in range(3)] == [[0, 10], [10], [0]]
    with pytest.raises(DatasetError, match=r"a.hdf5: 2 demonstrations for 3 processes, each"):
        starts(0, 3, paths[:1])


def test_arrays_that_a_demo_may_lack(tmp_path):
    path = write(tmp_path / "demos.hdf5")
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/terminals"]
        file["data/demo_0/dones"][:] = [0, 1, 1]
        file["data/demo_0/force"] = np.arange(3.0)[:, None]
        del file["data/demo_1/rewards"]
    with DataFiles() as files:
        file = files.open(path)
        first = read_episode(file, "demo_0", ["s"], ["actions", "actions"], ["force", "rewards"])
        assert first.terminals.tolist() == [0, 1, 1] and first.timeouts.tolist() == [0, 0, 0]
        assert first.actions.tolist() == [[0.5, 0.5]] * 3 and first.rewards.tolist() == [1, 2, 3]
        assert {key: value.tolist() for key, value in first.steps.items()} == {"force": [0, 1, 2]}
        free = read_episode(file, "demo_1", ["s"], ["actions"], reward_free=True)
        assert free.rewards.tolist() == [0.0, 0.0]
        with pytest.raises(DatasetError, match=r"demo 'demo_1' has no 'rewards', which online RL"):
            read_episode(file, "demo_1", ["s"], ["actions"])


def test_actions_of_another_size_are_refused(tmp_path):
    path = write(tmp_path / "demos.hdf5")
    with pytest.raises(DatasetError, match=r"has actions of 2 numbers, but .* takes 1: learn"):
        load(path, action_keys=("actions", "actions"))


def test_a_cut_episode_keeps_its_other_arrays():
    episode = Episode(
        obs={"s": np.arange(4)[:, None]},
        actions=np.arange(4)[:, None],
        rewards=[0.0, 1.0, 0.0, 1.0],
        terminals=np.zeros(4),
        timeouts=np.ones(4),
        steps={"force": [5.0, 6.0, 7.0, 8.0]},
    )
    cut = up_to_success(episode)
    assert (cut.obs["s"].tolist(), cut.actions.tolist()) == ([[0], [1]], [[0], [1]])
    assert (cut.rewards.tolist(), cut.terminals.tolist()) == ([0.0, 1.0], [False, True])
    assert (cut.timeouts.tolist(), cut.next_obs) == ([False, False], None)
    assert cut.steps["force"].tolist() == [5.0, 6.0]


def test_batches_are_mixed_by_share(tmp_path):
    demos = load(write(tmp_path / "demos.hdf5"))
    other = ReplayBuffer({"s": (1,)}, 1, 10)
    other.add_episode(
        Episode({"s": np.full((2, 1), 77.0)}, np.zeros((2, 1)), [0, 0], [0, 1], [0, 0])
    )
    batch = MixedBuffer([(other, 0.25), (demos, 0.75)]).sample(8)
    assert (batch["obs"]["s"].flatten() == 77).tolist() == [True] * 2 + [False] * 6
    with pytest.raises(ValueError, match="sum to 1"):
        MixedBuffer([(other, 0.5), (demos, 0.6)])


def test_demonstrations_have_the_form_of_another_buffer(monkeypatch):
    given = []
    monkeypatch.setattr(module, "data_files", lambda config: nullcontext("files"))
    monkeypatch.setattr(module, "training_sources", lambda config, files: (config, files))
    monkeypatch.setattr(module, "load_demonstrations", lambda *a, **k: given.append((a, k)))
    online = SimpleNamespace(end_at_success="end")
    needs = SimpleNamespace(environment_rewards=False)
    config = SimpleNamespace(
        train=SimpleNamespace(action_keys=["actions"], online=online, seed=3),
        algo=SimpleNamespace(data_needs=lambda config: needs),
    )
    names = ("transitions", "returns", "frame_stack", "reward", "hindsight", "following")
    form = {name: name for name in names}
    memory = SimpleNamespace(obs_shapes={"s": (1,)}, image_keys=("cam",), **form)
    module.demonstrations_of(config, memory, 2)
    parts = {**vars(memory), "form": {"steps": 4}, "__init__": lambda self: None}
    sequences = type("Sequences", (SequenceReplay,), parts)()
    module.demonstrations_of(config, sequences, 2, Ranks(1, 2))
    words = {
        **{"action_keys": ["actions"], "images": ("cam",), "reward_free": True},
        **{"end_at_success": "end", **form},
    }
    for (places, found), ranks, steps in zip(
        given, (Ranks(0, 1), Ranks(1, 2)), (None, {"steps": 4}), strict=True
    ):
        assert places == ((config, "files"), {"s": (1,)}, 2, "files")
        assert found == {**words, "sequences": steps, "seed": ranks.seed(4), "ranks": ranks}
