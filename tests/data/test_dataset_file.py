"""Datasets of every format as demonstration files, and the check of a whole file."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile, check_dataset
from imitate.data.dataset_file import no_demos
from imitate.data.file.hdf5_format import NoDemosError
from tests.demo_files import episode, write_demos
from tests.refusals import refused


@pytest.fixture
def write(tmp_path):
    """Writes a file of two demos of two steps; given arrays replace those of demo_1, None removes one."""

    def make(next_obs=False, **arrays):
        obs = {"s": np.full((2, 1), 7.0)}
        more = {"next_obs": obs if next_obs else None, "steps": {"grip": np.zeros(2)}}
        demos = [episode(2, obs, 1, **more)] * 2
        path = write_demos(tmp_path / "a.hdf5", demos, filter_keys={"first": [0], "none": []})
        with h5py.File(path, "a") as file:
            for key, value in arrays.items():
                key = f"data/demo_1/{key.replace('__', '/')}"
                del file[key]
                if value is not None:
                    file[key] = value
        return path

    return make


@pytest.mark.parametrize(
    ("arrays", "how", "words"),
    [
        ({}, {}, None),
        ({"actions": np.full((2, 1), 2.0)}, {}, "'actions' is 2 at step 0, outside [-1, 1]"),
        ({"actions": np.full((2, 1), 2.0)}, {"bounded_actions": False}, None),
        ({"actions": np.full((2, 1), 2.0)}, {"filter_key": "first"}, None),
        ({"actions": np.full((2, 1), 2.0)}, {"action_keys": ["grip"]}, None),
        ({"grip": np.full(2, 2.0)}, {"action_keys": ["grip"]}, "'grip' is 2 at step 0, outside"),
        ({"grip": np.full(2, np.nan)}, {}, None),  # nothing reads it
        ({"grip": np.full(2, np.nan)}, {"action_keys": ["grip"]}, "'grip' is nan at step 0"),
        ({"actions": np.full((2, 1), np.nan)}, {"action_keys": ["grip"]}, "'actions' is nan at s"),
        ({"rewards": np.array([0, np.inf])}, {}, "'rewards' is inf at step 1"),
        ({"obs__s": np.zeros((2, 2))}, {}, "a step of 'obs/s' has shape (2,), but (1,) in demo 'd"),
        ({"obs__s": np.array([b"a", b"b"])}, {}, "'obs/s' holds |S1, not numbers"),
        ({"obs__s": np.full((2, 1), np.nan)}, {"modalities": {}}, None),
        ({"obs__s": np.full((2, 1), np.nan)}, {"modalities": {"s": "low_dim"}}, "'obs/s' is nan"),
        ({}, {"modalities": {"s": "rgb"}}, "demo 'demo_0': 'obs/s' has shape (1,) but is decl"),
        ({"actions": np.zeros((3, 1))}, {}, "attribute 'num_samples' is 2, but 'actions' has 3"),
        ({}, {"filter_key": "none"}, "filter key 'none' selects no demo: name another filter key"),
    ],
)
def test_a_whole_file_is_checked(write, arrays, how, words):
    path = write(**arrays)
    if words is None:
        check_dataset(path, **how)
        return
    with refused(f"{path}: ", words):
        check_dataset(path, **how)


def test_a_first_demo_without_actions_is_named(write):
    path = write()
    with h5py.File(path, "a") as file:
        del file["data/demo_0/actions"]
    with refused("demo 'demo_0' has no 'actions' (found: dones, grip, obs, rewards, terminals, t"):
        check_dataset(path)


@pytest.mark.parametrize(("words", "swmr"), [({}, False), ({"swmr": True}, True)])
def test_the_mode_of_the_file(write, words, swmr):
    with DatasetFile(write(), **words) as file:
        assert file.group("demo_0").file.swmr_mode is swmr


def test_next_observations_are_checked_where_there_are_some(write):
    check_dataset(write(next_obs=True))
    bad = {"next_obs__s": np.full((2, 1), np.nan)}
    with refused("'next_obs/s' is nan at step 0"):
        check_dataset(write(next_obs=True, **bad))
    check_dataset(write(next_obs=True, **bad), modalities={})


def test_files_of_other_layouts_and_without_demos(tmp_path):
    path = tmp_path / "d4rl.hdf5"
    with h5py.File(path, "w") as file:
        file["observations"], file["actions"] = np.arange(8.0).reshape(4, 2), np.zeros((4, 1))
        file["rewards"], file["terminals"] = np.zeros(4), np.array([0, 1, 0, 1], bool)
        file["timeouts"] = np.zeros(4, bool)
    before = path.read_bytes()
    with DatasetFile(path) as file:
        assert (file.path, file.demos()) == (path, ["demo_0", "demo_1"])
        assert file.hdf5_path != path and path.read_bytes() == before
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(1)
    with refused(f"{path}: there is no group 'data'", error=NoDemosError):
        DatasetFile(path)
    with h5py.File(path, "w") as file:
        file.create_group("data")
    with DatasetFile(str(path)) as file:
        assert file.path == file.hdf5_path == path and file.fingerprint()["num_demos"] == 0
        words = f"{path}: there is no demo under 'data': collect some first"
        assert str(no_demos(file, None)) == words
    with refused(words):
        check_dataset(path)
    with refused("there is no such file"):
        DatasetFile(tmp_path / "missing")
