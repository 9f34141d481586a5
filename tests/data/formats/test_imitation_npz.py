"""Trajectories of the imitation library: alignment, ends, and nothing unpickled."""

from pathlib import Path

import gymnasium
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.formats.base import Options
from imitate.data.formats.convert import convert
from imitate.errors import DatasetError

FIXTURES = Path(__file__).with_name("fixtures")


def run(tmp_path, source, **options):
    report = convert(source, tmp_path / "out.hdf5", options=Options(**options))
    return report, DatasetFile(tmp_path / "out.hdf5")


def test_cart_poles_next_observations_are_what_its_physics_gives(tmp_path):
    report, file = run(tmp_path, FIXTURES / "cartpole.npz", env="CartPole-v1")
    assert (report.demos, report.steps) == (4, 1801)
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    with file:
        for demo, step in (("demo_0", 0), ("demo_3", 0), ("demo_3", 392)):
            obs, following = (file.read(demo, f"{key}/flat")[step] for key in ("obs", "next_obs"))
            env.state = tuple(obs.astype(float))
            env.steps_beyond_terminated = None
            reached, *_ = env.step(int(file.read(demo, "actions")[step].argmax()))
            np.testing.assert_allclose(reached, following, atol=1e-5)


def test_only_ends_before_the_clock_are_terminals(tmp_path):
    _, file = run(tmp_path, FIXTURES / "cartpole.npz", env="CartPole-v1")
    with file:
        lengths = [file.length(demo) for demo in file.demos()]
        ends = [
            (file.read(demo, "terminals")[-1], file.read(demo, "timeouts")[-1])
            for demo in file.demos()
        ]
    assert lengths == [500, 408, 500, 393]
    assert ends == [(0, 1), (1, 0), (0, 1), (1, 0)]


def test_the_clock_is_guessed_from_equal_lengths_and_that_is_said(tmp_path):
    report, file = run(tmp_path, FIXTURES / "pendulum.npz")
    assert "2 of 2 trajectories time out, after 200 steps" in report.synthesised["timeouts"]
    assert "guess" in report.synthesised["timeouts"]
    assert report.changed["rewards"] == "float64 -> float32"
    with file:
        assert file.read("demo_1", "terminals").sum() == 0
        assert file.read("demo_1", "actions").shape == (200, 1)
        np.testing.assert_array_equal(
            file.read("demo_1", "next_obs/flat")[:-1], file.read("demo_1", "obs/flat")[1:]
        )
        original = np.load(FIXTURES / "pendulum.npz")["obs"]
        np.testing.assert_array_equal(file.read("demo_1", "next_obs/flat")[-1], original[-1])
        np.testing.assert_array_equal(file.read("demo_1", "obs/flat")[0], original[201])


def arrays():
    return {
        "obs": np.arange(16, dtype=np.float32).reshape(8, 2),
        "acts": np.array([0, 2, 1, 0, 1, 2]),
        "terminal": np.array([True, True]),
        "indices": np.array([2]),
    }


def test_horizon_says_what_the_clock_is(tmp_path):
    np.savez(tmp_path / "t.npz", **arrays())
    report, file = run(tmp_path, tmp_path / "t.npz", horizon=4)
    with file:
        assert file.read("demo_0", "terminals").tolist() == [0, 1]
        assert file.read("demo_1", "timeouts").tolist() == [0, 0, 0, 1]
        assert file.read("demo_0", "actions").tolist() == [[1, 0, 0], [0, 0, 1]]
        assert file.read("demo_1", "obs/flat").tolist() == [[6, 7], [8, 9], [10, 11], [12, 13]]
    assert report.synthesised["rewards"] == "0: the file has none"


class _Bomb:
    def __reduce__(self):
        return (Path.touch, (Path("exploded"),))


def test_pickled_infos_are_never_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("t.npz", **arrays(), infos=np.array([_Bomb()], dtype=object))
    report, file = run(tmp_path, Path("t.npz"))
    file.close()
    assert "pickled" in report.dropped["infos"]
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"indices": np.array([9])}, "'indices' does not cut 6 actions"),
        ({"obs": np.zeros((7, 2))}, "'obs'"),
        ({"terminal": np.array([True])}, "'indices and one'"),
        ({"acts": np.array([0, -1, 1, 0, 1, 2])}, "no indices of actions"),
        ({"acts": np.array([_Bomb()] * 6, dtype=object)}, "cannot be read"),
    ],
)
def test_what_does_not_fit_together_is_refused_and_leaves_nothing(tmp_path, change, words):
    np.savez(tmp_path / "t.npz", **{**arrays(), **change})
    with pytest.raises(DatasetError, match=words):
        convert(tmp_path / "t.npz", tmp_path / "out.hdf5")
    assert [path.name for path in tmp_path.iterdir()] == ["t.npz"]
