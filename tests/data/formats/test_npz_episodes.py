"""A folder with one .npz for each episode: exact values, other names of arrays, and files that are damaged."""

import numpy as np
import pytest

from imitate.config import load_config
from imitate.data import DatasetFile
from imitate.data.formats import registry
from imitate.data.formats.base import ConversionReport, Options
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
            "b.npz: has no array 'actions' (found: observations): give the array",
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


# ---- part by part --------------------------------------------------------------------------------


def read(folder, **options):
    """The source, its first episode and the report."""
    report, form = ConversionReport(), registry.find("npz-episodes")
    with form.read(folder, Options(**options), report) as source:
        return source, next(source.demos).episode, report


def test_the_environment_and_the_rate(tmp_path):
    folder = episode(tmp_path / "eps" / "a.npz")
    source, first, report = read(folder, fps=5.0)
    assert (source.count, source.control_freq, source.env_meta["type"]) == (1, 5.0, 4)
    assert report.synthesised == {
        "env_args": "a real robot: the files name no environment",
        "rewards": "0: the dataset has none",
        "timeouts": "at the last step: the dataset does not record ends of episodes",
    }
    assert report.renamed == {"observations": "obs/flat"} and report.kept == []
    assert "language" not in first.attrs and "success" not in first.attrs and first.next_obs is None
    source, _, report = read(folder, env="Pendulum-v1")
    assert source.env_meta == {"env_name": "Pendulum-v1", "type": 2, "env_kwargs": {}}
    assert "env_args" not in report.synthesised
    (tmp_path / "none").mkdir()
    with refused(f"{tmp_path / 'none'}: has no file '*.npz', so it has no episodes in this format"):
        read(tmp_path / "none")


def test_what_is_not_recognised(tmp_path):
    folder = episode(tmp_path / "eps" / "a.npz")
    (folder / "meta").mkdir()
    recognises = registry.find("npz-episodes").recognises
    assert not recognises(folder)
    assert not recognises(episode(tmp_path / "one" / "a.npz", observations=None))
    assert recognises(episode(tmp_path / "act" / "a.npz", actions=None, act=np.zeros(3)))


def test_numbers_in_one_file_make_all_actions_numbers(tmp_path):
    episode(tmp_path / "eps" / "a.npz", actions=np.array([0, 2, 1]))
    folder = episode(tmp_path / "eps" / "b.npz", actions=np.array([0.5, 1.0, 0.0]))
    assert read(folder)[1].actions.tolist() == [[0], [2], [1]]


@pytest.mark.parametrize(
    ("arrays", "rewards", "terminals", "timeouts"),
    [
        ({"rews": np.ones((3, 1))}, [1, 1, 1], [0, 0, 0], [0, 0, 1]),
        ({"rewards": np.ones(2)}, [0, 0, 0], [0, 0, 0], [0, 0, 1]),
        ({"rewards": np.ones((3, 2))}, [0, 0, 0], [0, 0, 0], [0, 0, 1]),
        ({"terminal": np.array([0, 1, 0])}, [0, 0, 0], [0, 1, 0], [0, 0, 1]),
        ({"terminals": np.array([0, 0, 1])}, [0, 0, 0], [0, 0, 1], [0, 0, 0]),
        ({"truncated": np.array([1, 0, 0])}, [0, 0, 0], [0, 0, 0], [1, 0, 0]),
        ({"dones": np.array([0, 0, 1]), "timeouts": np.array([0, 0, 1])}, [0, 0, 0], [0, 0, 1], [0, 0, 1]),
        ({"terminals": np.zeros(1)}, [0, 0, 0], [0, 0, 0], [0, 0, 1]),
    ],
)  # fmt: skip
def test_rewards_and_ends(tmp_path, arrays, rewards, terminals, timeouts):
    _, first, report = read(episode(tmp_path / "eps" / "a.npz", **arrays))
    assert first.rewards.tolist() == rewards
    assert (first.terminals.tolist(), first.timeouts.tolist()) == (terminals, timeouts)
    assert first.rewards.dtype.kind == "f" and first.terminals.dtype == bool == first.timeouts.dtype
    for name in arrays:
        key = {
            "rews": "rewards",
            "terminal": "terminals",
            "truncated": "timeouts",
            "dones": "terminals",
        }.get(name)
        assert report.renamed[name] == key if key else name in report.kept
    assert ("rewards" in report.synthesised) == (not any(rewards))
    known = {"truncated", "timeouts"} & arrays.keys()
    assert ("timeouts" in report.synthesised) == (not known)


ROWS = np.arange(4.0)[:, None]
PICTURES = np.arange(3 * 3 * 8 * 9, dtype=np.uint8).reshape(3, 3, 8, 9)


@pytest.mark.parametrize(
    ("arrays", "following"),
    [
        ({"observations": ROWS}, {"flat": [1, 2, 3]}),
        ({"observations": ROWS[:3], "next_obs": ROWS[:3] + 5}, {"flat": [5, 6, 7]}),
        ({"observations": ROWS[:3], "next_obs": ROWS[:2]}, None),
        ({"observations": ROWS[:3], "x": ROWS[:3], "next_obs": ROWS[:3]}, None),
        ({"observations": ROWS, "x": ROWS}, {"flat": [1, 2, 3], "x": [1, 2, 3]}),
        ({"observations": ROWS, "x": ROWS[:3]}, None),
    ],
)
def test_following_observations(tmp_path, arrays, following):
    _, first, _ = read(episode(tmp_path / "eps" / "a.npz", **arrays))
    found = first.next_obs and {
        key: value.ravel().tolist() for key, value in first.next_obs.items()
    }
    assert found == following
    assert all(len(value) == 3 for value in first.obs.values())


def test_names_and_forms_of_observations(tmp_path):
    arrays = {
        **{
            "observations": None,
            "obs": PICTURES,
            "observation/top": PICTURES,
            "observations/q": ROWS,
        },
        **{"obs/table": np.ones((3, 2, 2)), "flags": np.ones(3, bool), "gain": np.float64(2)},
        **{"words": np.array(["a", "b", "c"]), "long": np.ones((5, 1))},
    }
    _, first, report = read(episode(tmp_path / "eps" / "a.npz", **arrays))
    assert {key: value.shape for key, value in first.obs.items()} == {
        **{"image": (3, 8, 9, 3), "top": (3, 8, 9, 3), "q": (3, 1), "table": (3, 4)},
        "flags": (3, 1),
    }
    np.testing.assert_array_equal(first.obs["top"], PICTURES.transpose(0, 2, 3, 1))
    renamed = {"obs": "obs/image", "observation/top": "obs/top", "observations/q": "obs/q"}
    assert report.renamed == {**renamed, "obs/table": "obs/table", "flags": "obs/flags"}
    assert report.dropped == {
        "gain": "shape () in a.npz, whose actions have 3 rows",
        "long": "shape (5, 1) in a.npz, whose actions have 3 rows",
        "words": "not numbers",
    }
    assert report.changed == {
        "obs/image": "channels first -> (T, H, W, C)",
        "obs/top": "channels first -> (T, H, W, C)",
    }


@pytest.mark.parametrize(
    ("arrays", "option", "attrs"),
    [
        ({"success": np.array(False)}, None, {"success": False}),
        ({"success": np.array([0, 1, 0])}, "go", {"success": True, "language": "go"}),
        ({"language": np.array(["lift"])}, None, {"language": "lift"}),
        ({"language": np.array("lift")}, "go", {"language": "go"}),
        ({"language": np.array(["a", "b"])}, None, {}),
    ],
)
def test_attributes_of_an_episode(tmp_path, arrays, option, attrs):
    _, first, report = read(episode(tmp_path / "eps" / "a.npz", **arrays), language=option)
    assert first.attrs == attrs
    assert list(report.dropped) == (["language"] if attrs == {} else [])


def test_actions_without_a_step(tmp_path):
    with refused("a.npz: 'actions' has shape (0, 2); expected (T, A) with T at least 1"):
        read(episode(tmp_path / "eps" / "a.npz", actions=np.zeros((0, 2))))
    arrays = {"actions": None, "acts": np.zeros((3, 2)), "action": np.ones((3, 1))}
    _, first, report = read(episode(tmp_path / "eps" / "a.npz", **arrays))
    assert first.actions.shape == (3, 1) and report.renamed["action"] == "actions"
    assert "acts" in first.obs
