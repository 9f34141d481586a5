"""Several files as one dataset: arrays that differ, rates, validation demos that are trained on, copies."""

import h5py
import numpy as np
import pytest

from imitate.data.batches.build import check_agreement, check_apart, tell_of_copies
from imitate.data.batches.store import DataSource
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from tests.demo_files import ENV_META, episode, write_demos

KEYS = ("actions", "obs/s", "obs/t", "rewards")


@pytest.fixture
def write(tmp_path):
    """Writes a file of demos of 3 steps, with actions that count from a number."""

    def make(name, obs=None, numbers=(0,), rate=None, masks=None, actions=None):
        obs = {"s": np.zeros((3, 2))} if obs is None else obs
        counted = [(np.arange(3)[:, None] + n) / 100 for n in numbers]
        meta = {**ENV_META, "env_kwargs": {} if rate is None else {"control_freq": rate}}
        demos = [episode(3, obs, each if actions is None else actions) for each in counted]
        path = write_demos(tmp_path / name, demos, meta, masks, strict=False)
        return DataSource(path)

    return make


@pytest.mark.parametrize(
    ("obs", "words"),
    [
        ({"s": np.zeros((3, 3))}, r"a step of 'obs/s' has shape \(3,\), but \(2,\) in the other"),
        ({"t": np.zeros((3, 1))}, r"'obs/s' is missing, but has shape \(2,\) in the other file; 'o"),
        ({"s": np.zeros((3, 2)), "t": np.zeros((3, 1))}, r"'obs/t' has shape \(1,\), but is missing"),
        ({"s": np.zeros((3, 2), np.uint8)}, "'obs/s' is uint8, but not uint8 in the other file"),
    ],
)  # fmt: skip
def test_arrays_that_differ(write, obs, words):
    with DataFiles() as files, pytest.raises(DatasetError, match=words) as raised:
        check_agreement([write("a.hdf5"), write("b.hdf5", obs)], KEYS, files)
    assert "b.hdf5 (demo 'demo_0') does not fit" in str(raised.value)


def test_files_that_agree(write):
    """Numbers of any type but uint8, a column or its single numbers, keys that nobody reads."""
    plain = {"s": np.zeros((3, 1))}
    others = ({"s": np.zeros(3)}, {"s": np.zeros((3, 1), np.float32)}, {**plain, "u": np.zeros(3)})
    with DataFiles() as files:
        for number, obs in enumerate(others):
            check_agreement([write("a.hdf5", plain), write(f"b{number}.hdf5", obs)], KEYS, files)


def test_a_mask_without_demos(write):
    source = write("a.hdf5", masks={"none": []})
    with DataFiles() as files, pytest.raises(DatasetError, match="'none' selects no demo"):
        check_agreement([DataSource(source.path, filter_key="none")], KEYS, files)


@pytest.mark.parametrize(
    ("rates", "warned"),
    [((20, 10), True), ((20, 20), False), ((20, None), False), ((None, 20), False)],
)
def test_different_rates_are_warned_of(write, rates, warned, caplog):
    sources = [write(f"{number}.hdf5", rate=rate) for number, rate in enumerate(rates)]
    with DataFiles() as files:
        check_agreement(sources, KEYS, files)
    assert ("would learn both rates" in caplog.text) == warned


@pytest.mark.parametrize(
    ("trained", "words"),
    [
        ({"filter_key": "train"}, None),
        ({"filter_key": "both"}, "1 validation demos .* 'demo_2', are .*filter key 'both'"),
        ({}, "1 validation demos .*no filter key, so all demos"),
        ({"demo_limit": 2}, None),
        ({"demo_limit": 3}, "1 validation demos"),
    ],
)
def test_demos_are_trained_on_or_validated_on(write, trained, words):
    masks = {"train": [0, 1], "valid": [2], "both": [1, 2]}
    path = write("a.hdf5", numbers=(0, 1, 2), masks=masks).path
    valid, train = DataSource(path, filter_key="valid"), DataSource(path, **trained)
    elsewhere = write("b.hdf5", numbers=(0, 1, 2))
    with DataFiles() as files:
        check_apart([elsewhere], [valid], files)
        if words is None:
            check_apart([elsewhere, train], [valid], files)
            return
        with pytest.raises(DatasetError, match=words):
            check_apart([elsewhere, train], [valid], files)


def test_validation_needs_its_mask(write):
    source = write("a.hdf5", masks={"train": [0]})
    with DataFiles() as files, pytest.raises(DatasetError, match="no filter key 'valid' for the"):
        check_apart([source], [DataSource(source.path, filter_key="valid")], files)


@pytest.mark.parametrize(
    ("train", "valid", "words"),
    [
        ((0, 1), (2,), []),
        ((0, 1, 0, 0), (2,), ["2 demos twice in the training data: demo 'demo_2' of", "actions as demo 'demo_0'"]),
        ((0, 1), (1,), ["1 demo in both training and validation data: demo 'demo_0' of", "demo 'demo_1' of"]),
    ],
)  # fmt: skip
def test_copies_are_told_of(write, train, valid, words, caplog):
    sources = [write("a.hdf5", numbers=train)], [write("b.hdf5", numbers=valid)]
    with DataFiles() as files:
        tell_of_copies(*sources, files)
    assert all(word in caplog.text for word in words)
    assert bool(words) == bool(caplog.text)


def test_the_same_bytes_of_another_type_are_no_copy(write, caplog):
    first = write("a.hdf5", actions=np.zeros((3, 2), np.float32))
    second = write("b.hdf5", actions=np.zeros((3, 1), np.float64))
    with h5py.File(first.path) as file:
        assert file["data/demo_0/actions"].shape == (3, 2)
    with DataFiles() as files:
        tell_of_copies([first, second], [], files)
    assert not caplog.text
