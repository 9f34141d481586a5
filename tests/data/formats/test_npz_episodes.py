"""A folder with one .npz for each episode: exact values, other names of arrays, and files that are damaged."""

import numpy as np
import pytest

from imitate.config import load_config
from imitate.data import DatasetFile
from imitate.data.formats import registry
from imitate.data.formats.convert import convert
from tests.calling import call
from tests.refusals import refused


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


def episode(file, length=3, first=0.0, **arrays):
    file.parent.mkdir(exist_ok=True)
    rows = first + np.arange(length, dtype=float)[:, None]
    found = {"actions": rows * [1, -1], "observations": rows * [1, 10, 100], **arrays}
    np.savez(file, **{name: values for name, values in found.items() if values is not None})
    return file.parent


def converted(folder, out, **words):
    report = convert(folder, out, **words)
    return report, DatasetFile(out)


def test_values_are_those_of_the_files_in_the_order_of_their_numbers(tmp_path):
    for number in (10, 2):
        folder = episode(tmp_path / "eps" / f"ep_{number}.npz", first=number)
    report, file = converted(folder, tmp_path / "o.hdf5")
    assert (report.source_format, report.demos, report.steps) == ("npz-episodes", 2, 6)
    assert file.read("demo_0", "obs/flat")[:, 1].tolist() == [20, 30, 40]
    assert file.read("demo_1", "actions").tolist() == [[10, -10], [11, -11], [12, -12]]
    assert file.read("demo_1", "timeouts").tolist() == [0, 0, 1]
    assert file.env_meta["type"] == 4 and set(report.synthesised) >= {"rewards", "timeouts"}


def test_images_states_rewards_ends_and_attributes(tmp_path):
    images = np.arange(3 * 8 * 8 * 3, dtype=np.uint8).reshape(3, 8, 8, 3)
    folder = episode(
        tmp_path / "eps" / "a.npz",
        **{"observations": None, "observation.state": np.ones((3, 2), np.float32)},
        **{"images": images, "reward": np.array([0, 0, 1.0]), "done": np.array([0, 0, 1])},
        **{"success": np.array([False, False, True]), "language": np.array("push it")},
        **{"gain": np.ones(7), "name": np.array(["a", "b", "c"]), "joint": np.arange(3)},
    )
    report, file = converted(folder, tmp_path / "o.hdf5")
    assert (file.read("demo_0", "obs/images") == images).all()
    assert sorted(file.obs_keys("demo_0")) == ["images", "joint", "state"]
    assert file.shape("demo_0", "obs/joint") == (3, 1)
    assert file.read("demo_0", "rewards").tolist() == [0, 0, 1]
    assert file.read("demo_0", "terminals").tolist() == [0, 0, 1]
    assert not file.read("demo_0", "timeouts").any()
    assert file.attrs("demo_0")["language"] == "push it" and file.attrs("demo_0")["success"]
    assert set(report.dropped) == {"gain", "name"} and "rewards" not in report.synthesised


@pytest.mark.parametrize("rows", [4, 3])
def test_next_observations(tmp_path, rows):
    seen = np.arange(rows, dtype=float)[:, None]
    more = {} if rows == 4 else {"next_observations": seen + 1}
    folder = episode(tmp_path / "eps" / "a.npz", observations=seen, **more)
    file = converted(folder, tmp_path / "o.hdf5")[1]
    assert file.read("demo_0", "obs/flat").ravel().tolist() == [0, 1, 2]
    assert file.read("demo_0", "next_obs/flat").ravel().tolist() == [1, 2, 3]


def test_choices_are_counted_over_all_episodes(tmp_path):
    episode(tmp_path / "eps" / "a.npz", actions=np.array([0, 1, 0]))
    folder = episode(tmp_path / "eps" / "b.npz", actions=np.array([2, 1, 0]))
    file = converted(folder, tmp_path / "o.hdf5")[1]
    assert file.read("demo_0", "actions").tolist() == [[1, 0, 0], [0, 1, 0], [1, 0, 0]]


def test_pickled_objects_are_never_read(tmp_path):
    infos = np.array([Evil(tmp_path / "ran")] * 3, dtype=object)
    folder = episode(tmp_path / "eps" / "a.npz", infos=infos)
    assert "pickled objects" in converted(folder, tmp_path / "o.hdf5")[0].dropped["infos"]
    with refused("a.npz: cannot be read|Object arrays cannot be loaded"):
        convert(
            episode(tmp_path / "eps" / "a.npz", actions=infos),
            tmp_path / "p.hdf5",
            from_format="npz-episodes",
        )
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (
            {"actions": None},
            "b.npz: has no array 'actions' (found: observations): name the actions",
        ),
        ({"actions": np.zeros(())}, "b.npz: 'actions' has shape (); expected (T, A)"),
        ({"observations": np.zeros((9, 2))}, "b.npz: has no observation with one row for each of"),
    ],
)
def test_damaged_episodes_are_named(tmp_path, arrays, words):
    episode(tmp_path / "eps" / "a.npz")
    folder = episode(tmp_path / "eps" / "b.npz", **arrays)
    with refused(words):
        convert(folder, tmp_path / "o.hdf5")
    assert not (tmp_path / "o.hdf5").exists()


def test_what_is_recognised(tmp_path):
    folder = episode(tmp_path / "eps" / "a.npz")
    assert registry.detect(folder).name == "npz-episodes"
    recognises = registry.find("npz-episodes").recognises
    assert not recognises(folder / "a.npz") and not recognises(tmp_path)
    assert not recognises(episode(tmp_path / "others" / "a.npz", actions=None))
    (folder / "a.npz").write_text("no archive")
    assert not recognises(folder)


def test_commands_read_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("IMITATE_CACHE", str(tmp_path / "cache"))
    for number in range(4):
        folder = episode(tmp_path / "eps" / f"ep_{number}.npz", 12, number)
    assert "4, 48 steps" in call("info", folder).stdout
    call("config init", folder, "--out", tmp_path / "my.json", "--algo", "bc")
    config = load_config(tmp_path / "my.json")
    assert config.observation.modalities.obs.low_dim == ("flat",)
