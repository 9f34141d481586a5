"""D4RL's flat files: where episodes end, and which row follows which."""

from pathlib import Path

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError

WALKER = Path(__file__).with_name("fixtures") / "walker2d.hdf5"


def run(tmp_path, source, **options):
    report = convert(source, tmp_path / "out.hdf5", options=Options(**options))
    return report, DatasetFile(tmp_path / "out.hdf5")


def write(path, length=12, terminals=(), timeouts=(), **more):
    """Row i observes [i, 10 i]."""
    rows = np.arange(length)
    arrays = {
        "observations": np.stack([rows, 10 * rows], axis=1).astype(np.float32),
        "actions": rows[:, None].astype(np.float32) / 100,
        "rewards": rows.astype(np.float32),
        "terminals": np.isin(rows, terminals),
        "timeouts": None if timeouts is None else np.isin(rows, timeouts),
        **more,
    }
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            if value is not None:
                file[key] = value
    return path


def test_a_recorded_file_with_its_final_observations(tmp_path):
    report, file = run(tmp_path, WALKER)
    assert (report.demos, report.steps) == (4, 191)
    with h5py.File(WALKER) as original, file:
        observations = original["observations"][:]
        final = original["metadata/episode_final_observation"][:]
        seed = original["metadata/episode_seed"][3]
        assert [file.length(demo) for demo in file.demos()] == [11, 60, 60, 60]
        np.testing.assert_array_equal(file.read("demo_3", "obs/flat"), observations[131:])
        np.testing.assert_array_equal(file.read("demo_3", "next_obs/flat")[:-1], observations[132:])
        np.testing.assert_array_equal(file.read("demo_3", "next_obs/flat")[-1], final[3])
        ends = [
            (file.read(demo, "terminals")[-1], file.read(demo, "timeouts")[-1])
            for demo in file.demos()
        ]
        assert ends == [(1, 0), (0, 1), (1, 0), (0, 1)]
        assert file.attrs("demo_3")["episode_seed"] == seed
        assert file.env_meta == {"env_name": "Walker2d-v5", "type": 2, "env_kwargs": {}}


def test_the_last_row_goes_where_nobody_knows_what_followed(tmp_path):
    write(tmp_path / "d.hdf5", terminals=[3], timeouts=[7, 11])
    report, file = run(tmp_path, tmp_path / "d.hdf5")
    with file:
        assert [file.length(demo) for demo in file.demos()] == [4, 3, 3]
        assert file.read("demo_0", "next_obs/flat")[:, 0].tolist() == [1, 2, 3, 3]
        assert file.read("demo_1", "obs/flat")[:, 0].tolist() == [4, 5, 6]
        assert file.read("demo_1", "next_obs/flat")[:, 0].tolist() == [5, 6, 7]
        assert file.read("demo_2", "next_obs/flat")[-1, 0] == 11
        assert file.read("demo_2", "timeouts").tolist() == [0, 0, 1]
        assert file.read("demo_0", "terminals").tolist() == [0, 0, 0, 1]
    assert report.dropped["last rows at timeouts"].startswith("2 rows")
    assert "next_observations" not in report.renamed


def test_next_observations_of_the_file_are_taken(tmp_path):
    following = np.arange(24, dtype=np.float32).reshape(12, 2) + 100
    write(tmp_path / "d.hdf5", timeouts=[7, 11], next_observations=following)
    report, file = run(tmp_path, tmp_path / "d.hdf5")
    with file:
        np.testing.assert_array_equal(file.read("demo_1", "next_obs/flat"), following[8:])
    assert not report.dropped
    assert report.renamed["next_observations"] == "next_obs/flat"


def test_timeouts_that_are_no_resets_go_on(tmp_path):
    # As in maze2d: one run, flags where a sub-goal was reached.
    angle = np.arange(3000) / 10
    seen = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    write(tmp_path / "d.hdf5", length=3000, timeouts=range(99, 2999, 100), observations=seen)
    report, file = run(tmp_path, tmp_path / "d.hdf5")
    assert any("continues after its 29 timeouts" in note for note in report.notes)
    with file:
        np.testing.assert_array_equal(file.read("demo_0", "next_obs/flat")[-1], seen[100])
        assert file.length("demo_0") == 100
        assert file.read("demo_0", "timeouts")[-1] == 1
        assert file.length("demo_29") == 99  # nothing follows the file's last row


def test_jumps_inside_an_episode_are_told(tmp_path):
    seen = np.arange(200, dtype=np.float32)[:, None] * 0.01
    seen[120:] += 500  # as in antmaze-v0
    write(tmp_path / "d.hdf5", length=200, timeouts=[199], observations=seen)
    report, file = run(tmp_path, tmp_path / "d.hdf5")
    file.close()
    assert any("the first after row 119" in note for note in report.notes)


def test_without_timeouts_the_horizon_cuts(tmp_path):
    write(tmp_path / "d.hdf5", terminals=[2], timeouts=None)
    report, file = run(tmp_path, tmp_path / "d.hdf5", horizon=4)
    with (
        file
    ):  # rows 0-2, 3-6, 7-10, 11; the last of each but the first goes, the lone one altogether
        assert [file.length(demo) for demo in file.demos()] == [3, 3, 3]
    assert report.synthesised["timeouts"].startswith("2 episodes end after 4 steps")


def test_kitchens_demo_numbers_and_flags_as_columns(tmp_path):
    number = np.repeat([0, 1, 2], 4)
    path = write(
        tmp_path / "d.hdf5",
        timeouts=None,
        infos=number,
        terminals=[3, 7, 11],
        rewards=np.arange(12)[:, None],
    )
    with h5py.File(path, "a") as file:
        flags = file["terminals"][:].astype(np.float32)
        del file["terminals"]
        file["terminals"] = flags[:, None]
    report, file = run(tmp_path, path)
    with file:
        assert [file.length(demo) for demo in file.demos()] == [4, 4, 4]
        assert file.read("demo_2", "rewards").tolist() == [8, 9, 10, 11]
        assert file.read("demo_2", "infos").tolist() == [2, 2, 2, 2]


def test_infos_are_kept_and_policy_weights_are_not(tmp_path):
    path = write(tmp_path / "d.hdf5", terminals=[11])
    with h5py.File(path, "a") as file:
        file["infos/qpos"] = np.ones((12, 3))
        file["metadata/policy/fc0/weight"] = np.ones((5, 2))
        file["metadata/algorithm"] = b"SAC"
    report, out = run(tmp_path, path)
    with out:
        assert out.shape("demo_0", "infos/qpos") == (12, 3)
    assert set(report.dropped) == {"metadata/policy/fc0/weight", "metadata/algorithm"}


def test_early_timeouts_are_told(tmp_path):
    write(tmp_path / "d.hdf5", timeouts=[3, 11])
    report, file = run(tmp_path, tmp_path / "d.hdf5")
    file.close()
    assert any(note.startswith("1 of 2 timeouts lie before step 8") for note in report.notes)


def test_rows_that_do_not_agree_are_refused(tmp_path):
    path = write(tmp_path / "d.hdf5", timeouts=[11], actions=np.zeros((11, 1)))
    with pytest.raises(DatasetError, match="'actions' has 11 rows, but 'observations' has 12"):
        convert(path, tmp_path / "out.hdf5")
    assert not list(tmp_path.glob("out*"))
