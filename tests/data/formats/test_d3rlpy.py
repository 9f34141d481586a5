"""d3rlpy's dumps: T observations, the last next one lost."""

from pathlib import Path

import h5py
import numpy as np

from imitate.data import DatasetFile
from imitate.data.formats.convert import convert

FIXTURES = Path(__file__).with_name("fixtures")


def dump(path, episodes, terminated, actions=None, image=False):
    """As ReplayBuffer.dump writes version 2.1; episode i observes [i, t]."""
    with h5py.File(path, "w") as file:
        file["columns"] = np.array([b"observations", b"actions", b"rewards", b"terminated"])
        file["num_episodes"] = len(episodes)
        file["version"] = "2.1"
        for i, length in enumerate(episodes):
            steps = np.arange(length, dtype=np.float32)
            seen = np.stack([np.full(length, i, np.float32), steps], axis=1)
            file[f"observations_{i}"] = (
                np.full((length, 3, 8, 9), i, dtype=np.uint8) if image else seen
            )
            file[f"actions_{i}"] = steps[:, None] / 10 if actions is None else actions[i]
            file[f"rewards_{i}"] = steps[:, None]
            file[f"terminated_{i}"] = terminated[i]
    return path


def test_vectors_dumped_by_the_package_itself(tmp_path):
    """Two episodes of 4 and 3 steps, the second cut by the clock; observations are [10 i + t, 0.5, -t]."""
    assert convert(FIXTURES / "d3rlpy_vectors.h5", tmp_path / "o.hdf5").source_format == "d3rlpy"
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_0", "obs/flat")[:, 0].tolist() == [0, 1, 2, 3]
        assert file.read("demo_0", "terminals").tolist() == [0, 0, 0, 1]
        assert file.read("demo_1", "obs/flat").tolist() == [[10, 0.5, 0], [11, 0.5, -1]]
        assert file.read("demo_1", "next_obs/flat")[:, 0].tolist() == [11, 12]
        assert file.read("demo_1", "timeouts").tolist() == [0, 1]
        assert file.read("demo_1", "rewards").tolist() == [4, 5]
        np.testing.assert_allclose(file.read("demo_1", "actions"), [[0.1, 0], [0.1, 0.1]])


def test_images_dumped_by_the_package_itself(tmp_path):
    """Frame t is [t, t + 50, t] in (3, 8, 8), actions 0 to 2, two terminal episodes of 3 steps."""
    convert(FIXTURES / "d3rlpy_images.h5", tmp_path / "o.hdf5")
    with DatasetFile(tmp_path / "o.hdf5") as file:
        images = file.read("demo_1", "obs/image")
        assert images.shape == (3, 8, 8, 3)
        assert images[:, 7, 0].tolist() == [[3, 53, 3], [4, 54, 4], [5, 55, 5]]
        assert file.read("demo_0", "actions").tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
        assert file.read("demo_1", "terminals").tolist() == [0, 0, 1]


def test_terminal_episodes_are_whole_and_others_lose_their_last_row(tmp_path):
    source = dump(tmp_path / "d.h5", [3, 4], [True, False])
    report = convert(source, tmp_path / "o.hdf5")
    assert report.source_format == "d3rlpy"
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_0", "obs/flat").tolist() == [[0, 0], [0, 1], [0, 2]]
        assert file.read("demo_0", "next_obs/flat").tolist() == [[0, 1], [0, 2], [0, 2]]
        assert file.read("demo_0", "terminals").tolist() == [0, 0, 1]
        assert file.read("demo_1", "obs/flat").tolist() == [[1, 0], [1, 1], [1, 2]]
        assert file.read("demo_1", "next_obs/flat").tolist() == [[1, 1], [1, 2], [1, 3]]
        assert file.read("demo_1", "timeouts").tolist() == [0, 0, 1]
        assert file.read("demo_1", "rewards").tolist() == [0, 1, 2]


def test_discrete_actions_count_over_all_episodes(tmp_path):
    source = dump(
        tmp_path / "d.h5", [2, 2], [True, True], [np.array([[0], [1]]), np.array([[2], [0]])]
    )
    convert(source, tmp_path / "o.hdf5")
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.read("demo_0", "actions").tolist() == [[1, 0, 0], [0, 1, 0]]
        assert file.read("demo_1", "actions").tolist() == [[0, 0, 1], [1, 0, 0]]


def test_frames_are_turned_and_tuples_named(tmp_path):
    source = dump(tmp_path / "d.h5", [3], [True], image=True)
    with h5py.File(source, "a") as file:
        file["observations_0_0"] = file["observations_0"][:]
        file["observations_0_1"] = np.ones((3, 5), dtype=np.float32)
    convert(source, tmp_path / "image.hdf5")
    with DatasetFile(tmp_path / "image.hdf5") as file:
        assert file.shape("demo_0", "obs/image") == (3, 8, 9, 3)
    with h5py.File(source, "a") as file:
        del file["observations_0"]
    convert(source, tmp_path / "tuple.hdf5")
    with DatasetFile(tmp_path / "tuple.hdf5") as file:
        assert file.obs_keys("demo_0") == ["observations_0", "observations_1"]
        assert file.shape("demo_0", "next_obs/observations_1") == (3, 5)


def test_version_1_has_timeouts_in_its_episode_terminals(tmp_path):
    rows = np.arange(8, dtype=np.float32)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["observations"] = np.stack([rows, rows], axis=1)
        file["actions"] = np.array([0, 1, 0, 1, 0, 1, 0, 1])
        file["rewards"] = rows
        file["terminals"] = np.isin(rows, [3]).astype(np.float32)
        file["episode_terminals"] = np.isin(rows, [3, 6]).astype(np.float32)
        file["discrete_action"] = True
    report = convert(tmp_path / "d.h5", tmp_path / "o.hdf5")
    assert report.source_format == "d3rlpy"
    assert any("last episode of the file has no end" in note for note in report.notes)
    with DatasetFile(tmp_path / "o.hdf5") as file:
        assert file.demos() == ["demo_0", "demo_1"]  # the lone trailing row has no next one
        assert file.read("demo_0", "terminals").tolist() == [0, 0, 0, 1]
        assert file.read("demo_1", "timeouts").tolist() == [0, 1]
        assert file.read("demo_1", "next_obs/flat")[:, 0].tolist() == [5, 6]
        assert file.read("demo_1", "actions").tolist() == [[1, 0], [0, 1]]
