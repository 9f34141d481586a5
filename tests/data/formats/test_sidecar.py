"""A sidecar: whatever a format cannot store is written beside it and read again."""

import h5py
import numpy as np
import pytest

from imitate.data.file.encoded_frames import EncodedFrames, encode_image
from imitate.data.file.journal import JournaledFile
from imitate.data.formats.base import ConversionReport, NamedDemo, OpenedDataset
from imitate.data.formats.sidecar import (
    NAME,
    SidecarWriter,
    arrays_to_write,
    beside,
    plain_episode,
)
from tests.demo_files import episode
from tests.refusals import refused

META = {"env_name": "x", "type": 4, "env_kwargs": {"a": [1]}}
SEEN = np.array([[1.0, 2], [3, 4], [5, 6]])
AFTER = np.array([[3.0, 4], [5, 6], [7, 8]])


def written(folder, *demos, **more):
    source = OpenedDataset(META, iter(()), **more)
    writer = SidecarWriter(folder / NAME, source)
    for name, obs, arrays in demos:
        writer.append(NamedDemo(name, episode(3, obs, attrs={"success": True})), arrays)
    writer.finish()
    writer.close()
    return folder / NAME


def test_there_and_back(tmp_path):
    states = np.arange(3)[:, None]
    path = written(
        tmp_path,
        ("b", {"s": SEEN}, {"next_obs/s": AFTER, "states": states}),
        ("a", {"s": SEEN}, {}),
        control_freq=20.0,
        attrs={"maker": "us"},
        masks={"train": ["a", "no"], "none": []},
    )
    with h5py.File(path) as file:
        assert sorted(file["data/0"]) == ["final_obs", "states"]
        assert file["data/0/final_obs/s"][()].tolist() == [[7, 8]]
        assert sorted(file["data"].attrs) == ["control_freq", "env_args", "maker"]
    report = ConversionReport()
    source = OpenedDataset({}, iter(()))
    report.synthesised["env_args"] = "?"
    with beside(tmp_path, 2) as sidecar:
        sidecar.complete(source, report)
        assert (source.env_meta, source.control_freq, source.attrs) == (META, 20.0, {"maker": "us"})
        assert source.masks == {"none": [], "train": ["a"]}
        assert report.synthesised == {} and "env_args" in report.kept
        given = {"actions": np.zeros((3, 1)), "obs/s": SEEN, "states": states + 9}
        zeros = {key: np.zeros(3) for key in ("rewards", "terminals", "timeouts")}
        name, found = sidecar.demo(0, {**given, **zeros}, report)
        assert (name, found.attrs) == ("b", {"success": True})
        np.testing.assert_array_equal(found.next_obs["s"], AFTER)
        np.testing.assert_array_equal(found.states, states)  # its own goes before the format's
        name, found = sidecar.demo(1, {**given, **zeros}, report)
        assert (name, found.next_obs) == ("a", None)
        assert {"obs/s", "next_obs/s", "attribute success"} <= set(report.kept)
    words = f"{path}: has 2 demos, but the dataset has 3: the dataset was changed"
    with refused(words), beside(tmp_path, 3):
        pass
    with beside(tmp_path / "none", 2) as sidecar:
        assert sidecar is None


@pytest.mark.parametrize(
    ("following", "short"),
    [
        (AFTER, True),
        (AFTER.astype("f4"), False),
        (AFTER[:, :1], False),
        (np.concatenate([AFTER, AFTER[:1]]), False),
        (AFTER + [[0, 1], [0, 0], [0, 0]], False),
        (AFTER + [[0, 0], [0, 0], [0, 1]], True),
    ],
)
def test_only_the_last_of_observations_that_follow_is_stored(tmp_path, following, short):
    arrays = {"next_obs/s": following, "next_obs/t": AFTER}
    with h5py.File(written(tmp_path, ("a", {"s": SEEN}, arrays))) as file:
        assert sorted(file["data/0"]) == (["final_obs", "next_obs"] if short else ["next_obs"])
        np.testing.assert_array_equal(file["data/0/next_obs/t"], AFTER)  # without an observation
        assert "control_freq" not in file["data"].attrs and "mask" not in file


def open_files():
    return h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE)


def test_each_demo_is_written_at_once_and_an_unfinished_file_is_closed(tmp_path, monkeypatch):
    commit, done, before = JournaledFile.commit, [], open_files()
    monkeypatch.setattr(JournaledFile, "commit", lambda self: done.append(self) or commit(self))
    writer = SidecarWriter(tmp_path / NAME, OpenedDataset(META, iter(())))
    for number in range(2):
        writer.append(NamedDemo(f"d{number}", episode(3, {"s": SEEN})), {"states": SEEN})
        (tmp_path / "copy").write_bytes((tmp_path / NAME).read_bytes())
        with h5py.File(tmp_path / "copy") as file:
            assert len(file["data"]) == len(done) == number + 1
            np.testing.assert_array_equal(file[f"data/{number}/states"], SEEN)
    for _ in range(2):
        writer.close()
        assert open_files() == before
    unwritten = SidecarWriter(tmp_path / "other", OpenedDataset(META, iter(())))
    size = (tmp_path / "other").stat().st_size
    unwritten.close()
    assert (tmp_path / "other").stat().st_size == size  # nothing is written after a failure
    assert not (tmp_path / f"{NAME}.journal").exists()


@pytest.mark.parametrize("encoding", ["png", "jpeg"])
def test_frames_that_follow(tmp_path, encoding):
    images = np.random.default_rng(0).integers(0, 255, (3, 8, 9, 3), np.uint8)
    last = images[:1] // 2
    written(tmp_path, ("a", {"i": images}, {"next_obs/i": np.concatenate([images[1:], last])}))
    cells = [encode_image(image, encoding).tobytes() for image in images]
    frames = EncodedFrames(encoding, cells, (8, 9, 3))
    with beside(tmp_path, 1) as sidecar:
        arrays = {"actions": np.zeros((3, 1)), "obs/i": frames}
        found = sidecar.demo(0, arrays, ConversionReport())[1].next_obs["i"]
    assert isinstance(found, EncodedFrames) == (encoding == "png")
    wanted = np.concatenate([np.asarray(frames)[1:], last])
    np.testing.assert_array_equal(np.asarray(found), wanted)
    if encoding == "png":
        assert (found.encoding, found.frame, found.cells[:2]) == ("png", (8, 9, 3), cells[1:])


def test_arrays_and_a_plain_episode(tmp_path):
    made = episode(3, {"s": SEEN})
    arrays = arrays_to_write(NamedDemo("a", made), tmp_path)
    assert sorted(arrays) == ["actions", "obs/s", "rewards", "terminals", "timeouts"]
    with refused(f"{tmp_path}: demo 'a'"):
        arrays_to_write(NamedDemo("a", episode(3, {"s": SEEN[:2]})), tmp_path)
    report = ConversionReport()
    plain = plain_episode({"s": SEEN}, np.ones((3, 2)), {"k": 1}, report)
    assert plain.rewards.tolist() == plain.terminals.tolist() == [0, 0, 0]
    assert plain.timeouts.tolist() == [False, False, True]
    assert (plain.rewards.dtype, plain.attrs) == (np.float32, {"k": 1})
    assert report.synthesised == {
        "rewards": "0: the dataset has none",
        "timeouts": "at the last step: the dataset does not record ends of episodes",
    }
