"""MimicGen's files: what their generator leaves out is added."""

import h5py
import numpy as np
import pytest

from imitate.data.formats.base import ConversionReport, Options
from imitate.data.formats.mimicgen import FORMAT
from tests.data.formats.samples import mimicgen


def read(path):
    report = ConversionReport()
    with FORMAT.read(path, Options(), report) as source:
        return source, [demo.episode for demo in source.demos], report


def test_a_success_ends_in_a_terminal_with_reward_1(tmp_path):
    source, (first, _), report = read(mimicgen(tmp_path / "demo.hdf5"))
    assert first.terminals.tolist() == [False, False, False, True]
    assert not first.timeouts.any()
    assert first.rewards.tolist() == [0, 0, 0, 1] and first.rewards.dtype == np.float32
    assert first.attrs["success"] is True
    assert first.attrs["datagen_info.env_interface_name"] == "MG_Stack"
    old = "attribute datagen_info/env_interface_name"
    assert report.renamed[old] == "attribute datagen_info.env_interface_name"
    assert "only successes" in report.synthesised["terminals"]
    assert report.synthesised["timeouts"] == report.synthesised["terminals"]
    assert report.synthesised["rewards"] == "1 at the last step, else 0"
    assert any("imitate dataset split" in note for note in report.notes)
    assert source.masks == {}


def test_a_failure_ends_in_a_timeout_with_reward_0(tmp_path):
    _, (first, _), report = read(mimicgen(tmp_path / "demo_failed.hdf5"))
    assert first.timeouts.tolist() == [False, False, False, True]
    assert not first.terminals.any() and not first.rewards.any()
    assert first.attrs["success"] is False
    assert "a file of failures" in report.synthesised["terminals"]
    assert report.synthesised["rewards"] == "0"


@pytest.mark.parametrize("ends", ["dones", "terminals"])
def test_what_the_file_has_is_kept(tmp_path, ends):
    path = mimicgen(tmp_path / "demo.hdf5", ("demo_0",))
    with h5py.File(path, "r+") as file:
        demo = file["data/demo_0"]
        demo[ends] = np.array([0, 1, 0, 0])
        demo["rewards"] = np.array([0.0, 0.5, 0.0, 0.0])
        demo.attrs["success"] = False
        file["mask/m"] = np.array([b"demo_0"])
    source, (first,), report = read(path)
    assert first.terminals.tolist()[:3] == [False, True, False]
    assert first.rewards.tolist() == [0, 0.5, 0, 0]
    assert "rewards" not in report.synthesised
    assert source.masks == {"m": ["demo_0"]} and report.notes == []
    assert first.attrs["success"] in (False, 0)


@pytest.mark.parametrize(
    ("part", "is_ours"),
    [("datagen_info", True), ("src_demo_inds", True), ("src_demo_labels", True), ("other", False)],
)
def test_marks_of_a_generated_file(tmp_path, part, is_ours):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        file["data/demo_0/actions"] = np.zeros((2, 1))
        file[f"data/demo_0/{part}"] = np.zeros(2)
    assert FORMAT.recognises(path) is is_ours
    with h5py.File(path, "w") as file:
        file["x"] = 0
    assert FORMAT.recognises(path) is False


def test_without_information_of_the_generator(tmp_path):
    path = mimicgen(tmp_path / "demo.hdf5", ("demo_0",))
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/datagen_info"]
        file["data/demo_0/datagen_info"] = np.zeros(4)
    _, (first,), _ = read(path)
    assert not any(key.startswith("datagen_info.") for key in first.attrs)
