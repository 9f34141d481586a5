"""D4RL, d3rlpy and imitation: rows without episodes, where those end, and which row follows which."""

from pathlib import Path

import gymnasium
import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.formats.base import ConversionReport, Options
from imitate.data.formats.convert import convert
from imitate.data.formats.d4rl import goes_on, note_early
from imitate.data.formats.registry import find
from imitate.errors import DatasetError
from tests.data.formats import samples

FIXTURES = Path(__file__).with_name("fixtures")


def ends_of(file):
    """(terminal, timeout) of the last step of each demo."""
    keys = ("terminals", "timeouts")
    return [tuple(file.read(demo, key)[-1] for key in keys) for demo in file.demos()]


def lengths_of(file):
    return [file.length(demo) for demo in file.demos()]


def assert_holds(file, demo, **arrays):
    """Arrays of a demo, obs and next_obs by their key `flat`."""
    for key, values in arrays.items():
        found = file.read(f"demo_{demo}", f"{key}/flat" if key.endswith("obs") else key)
        np.testing.assert_allclose(found, values, rtol=1e-6)


# ---- D4RL ----------------------------------------------------------------------------------------


def d4rl(path, length=12, terminals=(), timeouts=(), **more):
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


def test_the_same_arrays_in_an_npz_are_read_in_the_same_way(converted, tmp_path):
    path = d4rl(tmp_path / "d.hdf5", terminals=[3], timeouts=[7, 11])
    with h5py.File(path) as file:
        np.savez(tmp_path / "d.npz", **{key: file[key][:] for key in file})
    before = (tmp_path / "d.npz").read_bytes()
    (_, theirs), _ = converted(path), convert(tmp_path / "d.npz", tmp_path / "n.hdf5")
    ours = DatasetFile(tmp_path / "n.hdf5")
    assert (tmp_path / "d.npz").read_bytes() == before
    assert lengths_of(ours) == lengths_of(theirs) and ends_of(ours) == ends_of(theirs)
    keys = ("actions", "rewards", "obs", "next_obs")
    for demo in range(len(theirs.demos())):
        names = {k: f"{k}/flat" if k.endswith("obs") else k for k in keys}
        assert_holds(ours, demo, **{k: theirs.read(f"demo_{demo}", names[k]) for k in keys})


def test_a_recorded_file_with_its_final_observations(converted):
    report, file = converted(FIXTURES / "walker2d.hdf5")
    assert (report.demos, report.steps) == (4, 191)
    with h5py.File(FIXTURES / "walker2d.hdf5") as original:
        observations = original["observations"][:]
        final = original["metadata/episode_final_observation"][:]
        seed = original["metadata/episode_seed"][3]
    assert lengths_of(file) == [11, 60, 60, 60]
    assert_holds(file, 3, obs=observations[131:], next_obs=[*observations[132:], final[3]])
    assert ends_of(file) == [(1, 0), (0, 1), (1, 0), (0, 1)]
    assert file.attrs("demo_3")["episode_seed"] == seed
    assert file.env_meta == {"env_name": "Walker2d-v5", "type": 2, "env_kwargs": {}}


def test_the_last_row_goes_where_nobody_knows_what_followed(converted, tmp_path):
    report, file = converted(d4rl(tmp_path / "d.hdf5", terminals=[3], timeouts=[7, 11]))
    assert lengths_of(file) == [4, 3, 3]
    rows = np.stack([np.arange(12), 10 * np.arange(12)], axis=1)
    assert_holds(file, 0, next_obs=rows[[1, 2, 3, 3]], terminals=[0, 0, 0, 1])
    assert_holds(file, 1, obs=rows[4:7], next_obs=rows[5:8])
    assert_holds(file, 2, next_obs=rows[9:], timeouts=[0, 0, 1])
    assert report.dropped["last rows at timeouts"].startswith("2 rows")
    assert "next_observations" not in report.renamed


def test_next_observations_of_the_file_are_taken(converted, tmp_path):
    following = np.arange(24, dtype=np.float32).reshape(12, 2) + 100
    path = d4rl(tmp_path / "d.hdf5", timeouts=[7, 11], next_observations=following)
    report, file = converted(path)
    np.testing.assert_array_equal(file.read("demo_1", "next_obs/flat"), following[8:])
    assert not report.dropped
    assert report.renamed["next_observations"] == "next_obs/flat"


def test_timeouts_that_are_no_resets_go_on(converted, tmp_path):
    # As in maze2d: one run, flags where a sub-goal was reached.
    angle = np.arange(3000) / 10
    seen = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    path = tmp_path / "d.hdf5"
    d4rl(path, length=3000, timeouts=range(99, 2999, 100), observations=seen)
    report, file = converted(path)
    assert any("continues after its 29 timeouts" in note for note in report.notes)
    np.testing.assert_array_equal(file.read("demo_0", "next_obs/flat")[-1], seen[100])
    assert file.length("demo_0") == 100
    assert file.read("demo_0", "timeouts")[-1] == 1
    assert file.length("demo_29") == 99  # nothing follows the file's last row


def test_jumps_and_early_timeouts_are_told(converted, tmp_path):
    seen = np.arange(200, dtype=np.float32)[:, None] * 0.01
    seen[120:] += 500  # as in antmaze-v0
    report, _ = converted(d4rl(tmp_path / "d", length=200, timeouts=[3, 199], observations=seen))
    assert any("the first after row 119" in note for note in report.notes)
    assert any(note.startswith("1 of 2 timeouts are before step") for note in report.notes)


def test_without_timeouts_the_horizon_cuts(converted, tmp_path):
    report, file = converted(d4rl(tmp_path / "d", terminals=[2], timeouts=None), horizon=4)
    # rows 0-2, 3-6, 7-10, 11; the last of each but the first goes, the lone one altogether
    assert lengths_of(file) == [3, 3, 3]
    assert report.synthesised["timeouts"].startswith("2 episodes end after 4 steps")


def test_a_clock_that_is_not_known_or_cuts_once_is_reported(converted, tmp_path):
    words = (
        "the file has no 'timeouts': episodes end at terminals only; give --horizon or --env if a"
    )
    report, file = converted(d4rl(tmp_path / "d", terminals=[2, 11], timeouts=None))
    assert [note for note in report.notes if note.startswith(words)] and len(report.notes) == 1
    assert "timeouts" not in report.synthesised and lengths_of(file) == [3, 9]
    path = d4rl(tmp_path / "e", terminals=[11], timeouts=None)
    report = convert(path, tmp_path / "f.hdf5", options=Options(horizon=10))
    cut = "1 episode ends after 10 steps: the file has no 'timeouts'"
    assert report.synthesised["timeouts"] == cut and report.notes == []
    path = d4rl(tmp_path / "e", terminals=[11], timeouts=None)
    report = convert(path, tmp_path / "g.hdf5", options=Options(horizon=1))
    assert report.synthesised["timeouts"].startswith("11 episodes end after 1 step: ")


@pytest.mark.parametrize(
    ("keys", "is_ours"),
    [
        (("observations", "actions", "rewards", "terminals"), True),
        (("observations", "actions", "rewards"), False),
        (("observations", "actions", "rewards", "terminals", "data"), False),
    ],
)
def test_marks_of_flat_arrays(tmp_path, keys, is_ours):
    with h5py.File(tmp_path / "d", "w") as file:
        for key in keys:
            file[key] = np.zeros((0, 1))
    assert find("d4rl").recognises(tmp_path / "d") == is_ours
    if is_ours:
        with pytest.raises(DatasetError, match="d: has no row"):
            convert(tmp_path / "d", tmp_path / "o.hdf5")


def test_texts_and_numbers_of_the_file_are_kept_and_arrays_of_other_lengths_named(
    converted, tmp_path
):
    more = {
        "infos": np.repeat([0, 1, 2], 4),
        "gain": np.ones(5),
        "metadata/episode_map": np.ones((3, 2, 2)),
    }
    path = d4rl(tmp_path / "d", terminals=[3, 7, 11], **more)
    with h5py.File(path, "a") as file:
        file.attrs.update({"env_id": "Pendulum-v1", "version": 2, "table": [1, 2]})
        file["letters"] = np.array([b"x"] * 12)
    report, file = converted(path)
    assert file.env_meta["env_name"] == "Pendulum-v1"
    assert file.file_attrs["version"] == 2 and "table" not in file.file_attrs
    assert report.dropped == {
        "gain": "shape (5,): one value per file",
        "letters": "shape (12,): one value per file",
        "metadata/episode_map": "shape (3, 2, 2): one value per file",
    }
    assert "episodes end where the demo number in 'infos' changes" in report.notes
    assert "infos" in report.kept
    assert (
        report.synthesised["next_obs"]
        == "the following row; at an episode's end: at a terminal, the row's own observation"
    )


def test_kitchens_demo_numbers_and_flags_as_columns(converted, tmp_path):
    arrays = {
        "infos": np.repeat([0, 1, 2], 4),
        "rewards": np.arange(12)[:, None],
        "terminals": np.isin(np.arange(12), [3, 7, 11]).astype(np.float32)[:, None],
    }
    with h5py.File(d4rl(tmp_path / "d.hdf5", timeouts=None), "a") as file:
        for key, value in arrays.items():
            file.pop(key, None)
            file[key] = value
    _, file = converted(tmp_path / "d.hdf5")
    assert lengths_of(file) == [4, 4, 4]
    assert_holds(file, 2, rewards=[8, 9, 10, 11], infos=[2, 2, 2, 2])


def test_infos_are_kept_and_policy_weights_are_not(converted, tmp_path):
    path = d4rl(tmp_path / "d.hdf5", terminals=[11])
    with h5py.File(path, "a") as file:
        file["infos/qpos"] = np.ones((12, 3))
        file["metadata/policy/fc0/weight"] = np.ones((5, 2))
        file["metadata/algorithm"] = b"SAC"
    report, file = converted(path)
    assert file.shape("demo_0", "infos/qpos") == (12, 3)
    assert set(report.dropped) == {"metadata/policy/fc0/weight", "metadata/algorithm"}


@pytest.mark.parametrize(
    ("at_timeouts", "rows", "found"),
    [(1.0, 60, True), (2.0, 60, True), (2.1, 60, False), (1.0, 50, False), (0.0, 60, True)],
)
def test_a_run_goes_on_after_five_timeouts_without_a_jump(at_timeouts, rows, found):
    """Every tenth row is a timeout; the others change by 1, in a second number by 10, and a third one never."""
    timeouts = np.arange(rows) % 10 == 9
    places = np.cumsum(np.r_[0, np.where(timeouts, at_timeouts, 1.0)[:-1]])
    seen = np.stack([places, 10 * places, 0 * places], axis=1)
    report = ConversionReport()
    assert goes_on(seen, timeouts, timeouts, report) == found
    assert len(report.notes) == found
    if found:
        assert report.notes[0].startswith("the recording continues after its 5 timeouts")
    assert not goes_on(0 * seen, timeouts, timeouts, report)
    assert not goes_on(seen, np.ones(rows, bool), np.ones(rows, bool), report)


@pytest.mark.parametrize(("jump", "noted"), [(50.0, False), (51.0, True)])
@pytest.mark.parametrize("ends", [False, True])
def test_a_jump_is_fifty_times_the_usual_change(jump, noted, ends):
    places = np.cumsum([0.0, *[1.0] * 9, jump, *[1.0] * 9])
    last, report = np.zeros(20, bool), ConversionReport()
    last[9] = ends
    assert not goes_on(places[:, None], last, np.zeros(20, bool), report)
    assert [note.partition(" jump")[0] for note in report.notes] == (
        ["1 rows inside episodes"] if noted and not ends else []
    )
    assert not noted or ends or "the first after row 9:" in report.notes[0]


@pytest.mark.parametrize(
    ("lengths", "words"),
    [([], None), ([7, 7], None), ([5, 10, 10], "1 of 3 timeouts are before step 10, the longest")],
)
def test_timeouts_before_the_longest_one(lengths, words):
    report = ConversionReport()
    note_early(np.array(lengths, np.int64), report)
    assert [note.partition(":")[0] for note in report.notes] == ([words] if words else [])


def test_flags_that_say_both_and_an_end_without_a_flag(converted, tmp_path):
    report, file = converted(d4rl(tmp_path / "d", terminals=[3], timeouts=[3, 7]))
    assert ends_of(file) == [(1, 0), (0, 1), (0, 1)] and lengths_of(file) == [4, 3, 3]
    notes = [note.partition(":")[0] for note in report.notes]
    assert notes[0] == "1 rows are terminals and timeouts at once"
    assert "the last episode of the file has no end" in notes
    assert {"actions", "rewards", "terminals", "timeouts"} <= set(report.kept)


def test_final_observations_and_values_per_episode(converted, tmp_path):
    final = np.array([[7, 7], [8, 8], [9, 9]], np.float32)
    more = {
        "metadata/episode_final_observation": final,
        "metadata/episode_seed": np.array([4, 5, 6]),
        "metadata/episode_other": np.zeros(2),
    }
    path = d4rl(tmp_path / "d", timeouts=[3, 7, 11], **more)
    report, file = converted(path)
    assert lengths_of(file) == [4, 4, 4]
    assert [
        file.read(demo, "next_obs/flat")[-1].tolist() for demo in file.demos()
    ] == final.tolist()
    assert [file.attrs(demo)["episode_seed"] for demo in file.demos()] == [4, 5, 6]
    assert "episode_other" not in file.attrs("demo_0")
    assert report.renamed == {
        "observations": "obs/flat",
        "metadata/episode_seed": "attribute episode_seed",
    }


def test_final_observations_of_another_number_of_episodes(converted, tmp_path):
    more = {"metadata/episode_final_observation": np.zeros((2, 2), np.float32)}
    report, file = converted(d4rl(tmp_path / "e", terminals=[3, 11], timeouts=[7], **more))
    assert lengths_of(file) == [4, 3, 4]
    assert report.dropped["metadata/episode_final_observation"] == "2 rows for 3 episodes"
    assert not [note for note in report.notes if "no end" in note or "at once" in note]


def test_an_episode_of_a_single_row_without_a_successor(converted, tmp_path):
    report, file = converted(d4rl(tmp_path / "d", timeouts=[3, 4, 11]))
    assert (file.demos(), lengths_of(file)) == (["demo_0", "demo_2"], [3, 6])
    assert "episode 1 had a single row and is left out" in report.notes
    assert report.dropped["last rows at timeouts"].startswith("3 rows")


def test_ends_of_episodes_instead_of_timeouts(converted, tmp_path):
    ends = np.isin(np.arange(12), [3, 7, 11])
    path = d4rl(tmp_path / "d", terminals=[3], timeouts=None, episode_terminals=ends)
    report, file = converted(path)
    assert ends_of(file) == [(1, 0), (0, 1), (0, 1)] and lengths_of(file) == [4, 3, 3]
    assert report.renamed["episode_terminals"] == "timeouts, where they are not terminals"


# ---- d3rlpy --------------------------------------------------------------------------------------


def d3rlpy(path, episodes, terminated, actions=None, image=False):
    """As ReplayBuffer.dump writes version 2.1; episode i observes [i, t]."""
    with h5py.File(path, "w") as file:
        file["columns"] = np.array([b"observations", b"actions", b"rewards", b"terminated"])
        file["num_episodes"] = len(episodes)
        file["version"] = "2.1"
        for i, length in enumerate(episodes):
            steps = np.arange(length, dtype=np.float32)
            seen = np.stack([np.full(length, i, np.float32), steps], axis=1)
            frames = np.full((length, 3, 8, 9), i, np.uint8)
            file[f"observations_{i}"] = frames if image else seen
            file[f"actions_{i}"] = steps[:, None] / 10 if actions is None else actions[i]
            file[f"rewards_{i}"] = steps[:, None]
            file[f"terminated_{i}"] = terminated[i]
    return path


def test_vectors_dumped_by_the_package_itself(converted):
    """Two episodes of 4 and 3 steps, the second cut by the clock; observations are [10 i + t, 0.5, -t]."""
    report, file = converted(FIXTURES / "d3rlpy_vectors.h5")
    assert report.source_format == "d3rlpy"
    seen = [[10, 0.5, 0], [11, 0.5, -1], [12, 0.5, -2]]
    assert_holds(file, 0, obs=[[t, 0.5, -t] for t in range(4)], terminals=[0, 0, 0, 1])
    assert_holds(file, 1, obs=seen[:2], next_obs=seen[1:], timeouts=[0, 1], rewards=[4, 5])
    assert_holds(file, 1, actions=[[0.1, 0], [0.1, 0.1]])


def test_images_dumped_by_the_package_itself(converted):
    """Frame t is [t, t + 50, t] in (3, 8, 8), actions 0 to 2, two terminal episodes of 3 steps."""
    _, file = converted(FIXTURES / "d3rlpy_images.h5")
    images = file.read("demo_1", "obs/image")
    assert images.shape == (3, 8, 8, 3)
    assert images[:, 7, 0].tolist() == [[3, 53, 3], [4, 54, 4], [5, 55, 5]]
    assert file.read("demo_0", "actions").tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0]]
    assert file.read("demo_1", "terminals").tolist() == [0, 0, 1]


def test_terminal_episodes_are_whole_and_others_lose_their_last_row(converted, tmp_path):
    report, file = converted(d3rlpy(tmp_path / "d.h5", [3, 4], [True, False]))
    assert report.source_format == "d3rlpy"
    whole, cut = ([[number, t] for t in range(4)] for number in (0, 1))
    assert_holds(file, 0, obs=whole[:3], next_obs=[*whole[1:3], whole[2]], terminals=[0, 0, 1])
    assert_holds(file, 1, obs=cut[:3], next_obs=cut[1:], timeouts=[0, 0, 1], rewards=[0, 1, 2])


def test_an_episode_of_one_row_is_kept_at_a_terminal_and_dropped_at_a_timeout(converted, tmp_path):
    report, file = converted(d3rlpy(tmp_path / "d.h5", [1, 1], [True, False]))
    assert file.demos() == ["demo_0"]
    assert_holds(file, 0, obs=[[0, 0]], next_obs=[[0, 0]], terminals=[1], timeouts=[0])
    assert "1 steps, of which none has a next observation" in report.dropped["episode 1"]


def test_a_missing_array_of_observations(converted, tmp_path):
    source = d3rlpy(tmp_path / "d.h5", [2, 2], [True, True])
    with h5py.File(source, "a") as file:
        del file["observations_1"]
        file["observations_1_x"] = 0.0
    with pytest.raises(DatasetError, match="episode 1: has no array 'observations_1'"):
        converted(source)


@pytest.mark.parametrize(
    ("keys", "is_ours"),
    [
        (["observations", "episode_terminals"], True),
        (["observations", "discrete_action"], True),
        (["num_episodes", "columns"], True),
        (["observations", "columns"], False),
        (["observations", "num_episodes"], False),
        (["episode_terminals"], False),
    ],
)
def test_marks_of_a_buffer_of_d3rlpy(tmp_path, keys, is_ours):
    with h5py.File(tmp_path / "d.h5", "w") as file:
        for key in keys:
            file[key] = np.zeros(2)
    assert find("d3rlpy").recognises(tmp_path / "d.h5") == is_ours


def test_discrete_actions_count_over_all_episodes(converted, tmp_path):
    actions = [np.array([[0], [1]]), np.array([[2], [0]])]
    _, file = converted(d3rlpy(tmp_path / "d.h5", [2, 2], [True, True], actions))
    assert_holds(file, 0, actions=[[1, 0, 0], [0, 1, 0]])
    assert_holds(file, 1, actions=[[0, 0, 1], [1, 0, 0]])


@pytest.mark.parametrize(
    ("first", "second", "found", "change"),
    [
        ([[0], [1]], [[0.5], [1.0]], [[0], [1]], None),  # one episode has numbers
        ([[0, 1], [1, 0]], [[0, 0], [2, 2]], [[0, 1], [1, 0]], None),  # several for each step
        ([[0], [0]], [[0], [0]], [[1], [1]], "index -> one-hot of 1"),
        ([0, 1], [0, 0], [[1, 0], [0, 1]], "index -> one-hot of 2"),
    ],
)
def test_which_actions_are_choices(converted, tmp_path, first, second, found, change):
    source = d3rlpy(tmp_path / "d.h5", [2, 2], [True, True], [np.array(first), np.array(second)])
    report, file = converted(source)
    assert_holds(file, 0, actions=found)
    assert report.changed.get("actions") == change


def test_a_report_of_both_ends(converted, tmp_path):
    report, _ = converted(d3rlpy(tmp_path / "d.h5", [3, 1], [False, True]), env="Pendulum-v1")
    assert report.renamed == {
        "observations": "obs/flat",
        "terminated": "terminals, at the last step",
    }
    assert report.kept == ["actions", "rewards"]
    words = "the following observation; at a terminal the same observation, from which nothing is bootstrapped"
    assert report.synthesised == {"next_obs": words}
    assert report.dropped == {
        "last row of each episode that timed out": "its next observation is not in the file"
    }


def test_parts_of_a_tuple_have_the_order_of_their_numbers(converted, tmp_path):
    source = d3rlpy(tmp_path / "d.h5", [2, 3], [True, False])
    with h5py.File(source, "a") as file:
        for number, length in ((0, 2), (1, 3)):
            del file[f"observations_{number}"]
            for part in (10, 2):
                file[f"observations_{number}_{part}"] = np.arange(length)[:, None] + float(part)
    report, file = converted(source)
    assert file.read("demo_1", "obs/observations_10").ravel().tolist() == [10, 11]
    assert file.read("demo_1", "next_obs/observations_2").ravel().tolist() == [3, 4]
    assert file.read("demo_0", "next_obs/observations_2").ravel().tolist() == [3, 3]
    assert list(report.renamed) == ["observations_2", "observations_10", "terminated"]
    with h5py.File(source, "a") as file:
        del file["rewards_1"]
        file["rewards_1"] = np.zeros((2, 1))
    with pytest.raises(
        DatasetError, match="episode 1: 'rewards' has 2 rows, but 'observations_2' has 3"
    ):
        convert(source, tmp_path / "p.hdf5")


@pytest.mark.parametrize("form", ["frames", "tuple"])
def test_frames_are_turned_and_tuples_named(converted, tmp_path, form):
    source = d3rlpy(tmp_path / "d.h5", [3], [True], image=True)
    with h5py.File(source, "a") as file:
        file["observations_0_0"] = file["observations_0"][:]
        file["observations_0_1"] = np.ones((3, 5), dtype=np.float32)
        if form == "tuple":
            del file["observations_0"]
    _, file = converted(source)
    if form == "tuple":
        assert file.obs_keys("demo_0") == ["observations_0", "observations_1"]
        assert file.shape("demo_0", "next_obs/observations_1") == (3, 5)
    else:
        assert file.shape("demo_0", "obs/image") == (3, 8, 9, 3)


def test_version_1_has_timeouts_in_its_episode_terminals(converted, tmp_path):
    rows = np.arange(8, dtype=np.float32)
    with h5py.File(tmp_path / "d.h5", "w") as file:
        file["observations"] = np.stack([rows, rows], axis=1)
        file["actions"] = np.array([0, 1, 0, 1, 0, 1, 0, 1])
        file["rewards"] = rows
        file["terminals"] = np.isin(rows, [3]).astype(np.float32)
        file["episode_terminals"] = np.isin(rows, [3, 6]).astype(np.float32)
        file["discrete_action"] = True
    report, file = converted(tmp_path / "d.h5")
    assert report.source_format == "d3rlpy"
    assert any("last episode of the file has no end" in note for note in report.notes)
    assert file.demos() == ["demo_0", "demo_1"]  # the lone trailing row has no next one
    assert_holds(file, 0, terminals=[0, 0, 0, 1])
    assert_holds(file, 1, timeouts=[0, 1], next_obs=[[5, 5], [6, 6]], actions=[[1, 0], [0, 1]])


# ---- imitation: nothing is unpickled -------------------------------------------------------------


def test_cart_poles_next_observations_are_what_its_physics_gives(converted):
    report, file = converted(FIXTURES / "cartpole.npz", env="CartPole-v1")
    assert (report.demos, report.steps) == (4, 1801)
    # only ends before the clock are terminals
    assert lengths_of(file) == [500, 408, 500, 393]
    assert ends_of(file) == [(0, 1), (1, 0), (0, 1), (1, 0)]
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    for demo, step in (("demo_0", 0), ("demo_3", 0), ("demo_3", 392)):
        obs, following = (file.read(demo, f"{key}/flat")[step] for key in ("obs", "next_obs"))
        env.state = tuple(obs.astype(float))
        env.steps_beyond_terminated = None
        reached, *_ = env.step(int(file.read(demo, "actions")[step].argmax()))
        np.testing.assert_allclose(reached, following, atol=1e-5)


def test_the_clock_is_guessed_from_equal_lengths_and_that_is_said(converted):
    report, file = converted(FIXTURES / "pendulum.npz")
    assert "2 of 2 trajectories time out, after 200 steps" in report.synthesised["timeouts"]
    assert "guess" in report.synthesised["timeouts"]
    assert report.changed["rewards"] == "float64 -> float32"
    assert file.read("demo_1", "terminals").sum() == 0
    assert file.read("demo_1", "actions").shape == (200, 1)
    seen, following = file.read("demo_1", "obs/flat"), file.read("demo_1", "next_obs/flat")
    np.testing.assert_array_equal(following[:-1], seen[1:])
    original = np.load(FIXTURES / "pendulum.npz")["obs"]
    np.testing.assert_array_equal(following[-1], original[-1])
    np.testing.assert_array_equal(seen[0], original[201])


def arrays():
    return {
        "obs": np.arange(16, dtype=np.float32).reshape(8, 2),
        "acts": np.array([0, 2, 1, 0, 1, 2]),
        "terminal": np.array([True, True]),
        "indices": np.array([2]),
    }


def test_horizon_says_what_the_clock_is(converted, tmp_path):
    np.savez(tmp_path / "t.npz", **arrays())
    report, file = converted(tmp_path / "t.npz", horizon=4)
    assert_holds(file, 0, terminals=[0, 1], actions=[[1, 0, 0], [0, 0, 1]])
    assert_holds(file, 1, timeouts=[0, 0, 0, 1], obs=np.arange(6, 14).reshape(4, 2))
    assert report.synthesised["rewards"] == "0: the file has none"


class _Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_pickled_infos_are_never_read(converted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("t.npz", **arrays(), infos=np.array([_Bomb()], dtype=object))
    report, _ = converted(Path("t.npz"))
    assert "pickled" in report.dropped["infos"]
    assert not Path("exploded").exists()


def test_a_trajectory_of_ogbench_is_cut_at_its_last_row_and_not_solved(converted, tmp_path):
    report, file = converted(samples.ogbench(tmp_path / "cube-single-play-v0.npz"))
    assert (report.source_format, lengths_of(file)) == ("ogbench", [5, 4])
    rows = np.arange(11)[:, None]
    assert_holds(file, 0, obs=rows[:5] * [1, 10], next_obs=rows[1:6] * [1, 10], qpos=rows[:5])
    assert_holds(file, 1, obs=rows[6:10] * [1, 10], actions=rows[6:10] / 10)
    assert ends_of(file) == [(0, 1), (0, 1)]
    np.savez(tmp_path / "o.npz", observations=rows, terminals=rows[:, 0])
    with pytest.raises(DatasetError, match="no array 'actions'"):
        convert(tmp_path / "o.npz", tmp_path / "p.hdf5", from_format="ogbench")


def test_a_trajectory_of_ogbench_of_a_single_row_is_no_demo(tmp_path):
    rows = np.arange(8, dtype=np.float32)[:, None]
    ends = np.isin(np.arange(8), [1, 2, 7])
    path = tmp_path / "cube-single-play-v0.npz"
    np.savez(path, observations=rows, actions=rows, terminals=ends)
    with find("ogbench").read(path, Options(), ConversionReport("a", "b", "ogbench")) as opened:
        demos = list(opened.demos)
    assert opened.count == len(demos) == 2
    assert [len(demo.episode.actions) for demo in demos] == [1, 4]


# ---- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"indices": np.array([9])}, "'indices' does not divide 6 actions"),
        ({"obs": np.zeros((7, 2))}, "'obs'"),
        ({"terminal": np.array([True])}, "'indices and one'"),
        ({"acts": np.array([0, -1, 1, 0, 1, 2])}, "not indices of actions"),
        ({"acts": np.array([_Bomb()] * 6, dtype=object)}, "cannot be read"),
        (None, "'actions' has 11 rows, but 'observations' has 12"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_leaves_nothing(tmp_path, change, words):
    path = tmp_path / "t.npz"
    if change is None:
        d4rl(path, timeouts=[11], actions=np.zeros((11, 1)))
    else:
        np.savez(path, **{**arrays(), **change})
    with pytest.raises(DatasetError, match=words):
        convert(path, tmp_path / "o.hdf5")
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]
