"""Arrays of the imitation library and of OGBench: exact trajectories, time limits, and files that are damaged."""

import numpy as np
import pytest

from imitate.data.formats import imitation_npz, ogbench_npz
from imitate.data.formats.convert import convert
from tests.refusals import refused


def trajectories(path, lengths=(2, 3, 3), **changes):
    """Observation r is (r, -r), action r is (r / 8, 1, 0), reward r is r + 0.5."""
    steps, count = sum(lengths), len(lengths)
    rows, acts = np.arange(steps + count), np.arange(steps)
    arrays = {
        "obs": np.stack([rows, -rows], 1).astype(float),
        "acts": np.stack([acts / 8, acts**0, 0 * acts], 1),
        "rews": acts + 0.5,
        "terminal": np.ones(count, bool),
        "indices": np.cumsum(lengths)[:-1],
        **changes,
    }
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return path


def ends(file):
    return [(file.read(d, "terminals")[-1], file.read(d, "timeouts")[-1]) for d in file.demos()]


def test_trajectories(converted, tmp_path):
    source = trajectories(tmp_path / "a.npz", infos=np.array([{}], object), other=np.zeros(1))
    report, file = converted(source, horizon=9)
    assert [file.length(demo) for demo in file.demos()] == [2, 3, 3]
    assert file.read("demo_1", "obs/flat")[:, 0].tolist() == [3, 4, 5]
    assert file.read("demo_1", "next_obs/flat")[:, 1].tolist() == [-4, -5, -6]
    assert file.read("demo_2", "actions").tolist() == [[5 / 8, 1, 0], [6 / 8, 1, 0], [7 / 8, 1, 0]]
    assert file.read("demo_2", "rewards").tolist() == [5.5, 6.5, 7.5]
    assert file.read("demo_1", "terminals").tolist() == [0, 0, 1]
    assert file.read("demo_1", "timeouts").tolist() == [0, 0, 0]
    assert report.dropped == {
        "infos": "pickled objects, which may run code when read",
        "other": "unknown array",
    }
    assert report.renamed.items() >= {"rews": "rewards", "terminal": "terminals"}.items()
    words = "0 of 3 trajectories time out, after 9 steps (from --horizon)"
    assert report.synthesised["timeouts"] == words and "rewards" not in report.synthesised


@pytest.mark.parametrize(
    ("lengths", "terminal", "options", "timed_out", "words"),
    [
        (
            (2, 3, 3),
            (1, 1, 1),
            {"horizon": 3},
            (0, 1, 1),
            "2 of 3 trajectories time out, after 3 s",
        ),
        (
            (2, 3, 3),
            (0, 1, 1),
            {"horizon": 4},
            (1, 0, 0),
            "1 of 3 trajectories time out, after 4 s",
        ),
        ((2, 3, 3), (1, 1, 1), {}, (0, 1, 1), "after 3 steps (a guess: several trajectories have"),
        ((2, 3, 4), (1, 0, 1), {}, (0, 1, 0), None),
        ((2, 3), (1, 1), {"env": "Pendulum-v1"}, (0, 0), "after 200 steps (of Pendulum-v1)"),
    ],
)
def test_time_limits(converted, tmp_path, lengths, terminal, options, timed_out, words):
    source = trajectories(tmp_path / "a.npz", lengths, terminal=np.array(terminal), rews=None)
    report, file = converted(source, **options)
    assert ends(file) == [(1 - late, late) for late in timed_out]
    assert file.read("demo_0", "rewards").tolist() == [0, 0]
    assert report.synthesised["rewards"] == "0: the file has none"
    assert words is None or words in report.synthesised["timeouts"]
    assert any("'terminal' is true for time limits too" in n for n in report.notes) == (
        words is None
    )
    assert file.env_meta["env_name"] == options.get("env", "unknown")


def test_short_trajectories_and_no_rewards(converted, tmp_path):
    source = trajectories(tmp_path / "a.npz", (1, 3), rews=None, terminal=np.array([[1], [0]]))
    report, file = converted(source, horizon=3)
    assert [file.length(demo) for demo in file.demos()] == [1, 3]
    assert file.read("demo_0", "next_obs/flat").tolist() == [[1, -1]]
    assert ends(file) == [(1, 0), (0, 1)]
    assert report.renamed == {"obs": "obs/flat", "acts": "actions", "terminal": "terminals"}
    assert report.dropped == {} and file.read("demo_1", "rewards").dtype == np.float32


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"indices": np.array([2, 2])}, "'indices' does not divide 8 actions into trajectories"),
        ({"indices": np.array([2, 8])}, "'indices' does not divide 8 actions"),
        ({"obs": np.zeros((10, 2))}, "'acts and one more per trajectory' has 11 rows, but 'obs'"),
        ({"terminal": np.ones(2)}, "'indices and one' has 3 rows, but 'terminal' has 2"),
        ({"rews": np.ones(7)}, "'acts' has 8 rows, but 'rews' has 7"),
        (
            {"terminal": None},
            "a.npz: has no array 'terminal' (found: acts, indices, obs, rews): it is not a file",
        ),
        (
            {"acts": np.zeros((8, 2), int) - 1, "obs": None},
            "has no array 'obs' (found: acts, indices, rews, termi",
        ),
    ],
)
def test_damaged_trajectories(tmp_path, changes, words):
    with refused(words):
        convert(
            trajectories(tmp_path / "a.npz", **changes),
            tmp_path / "o.hdf5",
            from_format="imitation",
        )


def test_what_is_recognised(tmp_path):
    recognises = imitation_npz.FORMAT.recognises
    assert recognises(trajectories(tmp_path / "a.npz"))
    assert not recognises(trajectories(tmp_path / "b.npz", indices=None))
    (tmp_path / "text").write_text("no archive")
    assert not recognises(tmp_path / "text") and not recognises(tmp_path)
    assert not ogbench_npz.FORMAT.recognises(tmp_path)


# ---- OGBench -------------------------------------------------------------------------------------


def ogbench(path, terminals, **changes):
    rows = np.arange(len(terminals), dtype=float)[:, None]
    arrays = {
        "observations": rows * [1, 10],
        "actions": rows * [0.5, -0.5, 0],
        "qpos": rows,
        "terminals": np.array(terminals, float),
        **changes,
    }
    np.savez(path, **{name: values for name, values in arrays.items() if values is not None})
    return path


def test_the_last_row_of_a_trajectory_is_a_next_observation(converted, tmp_path):
    # rows 0 to 2, a lone row 3, rows 4 and 5 without an end
    report, file = converted(ogbench(tmp_path / "a.npz", [0, 0, 1, 1, 0, 0]))
    assert (report.source_format, report.demos, report.steps) == ("ogbench", 2, 3)
    assert file.read("demo_0", "obs/flat")[:, 1].tolist() == [0, 10]
    assert file.read("demo_0", "next_obs/flat")[:, 0].tolist() == [1, 2]
    assert file.read("demo_0", "actions").tolist() == [[0, 0, 0], [0.5, -0.5, 0]]
    assert file.read("demo_1", "obs/flat")[:, 0].tolist() == [4]
    assert file.read("demo_1", "qpos").tolist() == [[4]]
    for key, values in (("rewards", [0, 0]), ("terminals", [0, 0]), ("timeouts", [0, 1])):
        assert file.read("demo_0", key).tolist() == values
    assert report.kept == ["actions", "qpos"]
    assert set(report.synthesised) >= {"rewards", "timeouts"} and "terminals" in report.changed


def test_damaged_arrays_of_ogbench(tmp_path):
    path = ogbench(tmp_path / "a.npz", [0, 1], qpos=np.zeros((3, 1)))
    with refused("'qpos' has 3 rows, but 'observations' has 2: the file is cut short"):
        convert(path, tmp_path / "o.hdf5", from_format="ogbench")
    path = ogbench(tmp_path / "a.npz", [0, 1], actions=None)
    with refused("has no array 'actions' (found: observations, qpos, terminals): it is not"):
        convert(path, tmp_path / "o.hdf5", from_format="ogbench")
    path = trajectories(tmp_path / "a.npz", indices=None)
    with refused("has no array 'indices' (found: acts, obs, rews, terminal): it is not"):
        convert(path, tmp_path / "o.hdf5", from_format="imitation")
