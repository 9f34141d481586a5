"""Arrays of a file as columns in memory: their layout, derived ends, numbers that float32 cannot hold."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.file import fields
from imitate.data.file.fields import (
    Field,
    check_narrowing,
    check_step_key,
    lacks_signal,
    lay_out,
    read_pieces,
    read_steps,
    scalar_source,
)
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos

FLOAT = np.dtype(np.float32)


@pytest.fixture
def opened(tmp_path):
    """Opens a file of one demo of 3 steps; given arrays replace those of the writer, None removes one."""
    files = []

    def make(obs=None, end=None, **arrays):
        obs = {"s": np.arange(6.0).reshape(3, 2)} if obs is None else obs
        path = write_demos(tmp_path / "a.hdf5", [episode(3, obs, end=end)], strict=False)
        with h5py.File(path, "r+") as file:
            demo = file["data/demo_0"]
            for key, value in arrays.items():
                key = key.replace("__", "/")
                demo.pop(key, None)
                if value is not None:
                    demo[key] = value
        files.append(DatasetFile(path))
        return files[-1]

    yield make
    for file in files:
        file.close()


def read(file, key, start=0, stop=3):
    field = Field(key, (), None, FLOAT)
    return read_steps(file, "demo_0", field, start, stop).tolist()


def test_vectors_are_adjacent_columns_and_images_apart(opened):
    obs = {
        "s": np.zeros((3, 2)),
        "n": np.zeros(3),
        "i": np.zeros((3, 4, 4, 3), np.uint8),
        "d": np.zeros((3, 4, 4), np.uint16),
    }
    keys = ["obs/s", "rewards", "obs/i", "obs/d", "obs/n", "actions", "gripper", "signals/cost"]
    file = opened(obs, gripper=np.zeros(3), signals__cost=np.zeros(3))
    found = lay_out(file, "demo_0", keys)
    assert {key: (field.shape, field.columns) for key, field in found.items()} == {
        "obs/s": ((2,), slice(0, 2)),
        "rewards": ((), slice(2, 3)),
        "obs/i": ((4, 4, 3), None),
        "obs/d": ((4, 4), None),
        "obs/n": ((), slice(3, 4)),
        "actions": ((2,), slice(4, 6)),
        "gripper": ((1,), slice(6, 7)),
        "signals/cost": ((), slice(7, 8)),
    }
    assert found["obs/i"].dtype == np.uint8 and found["obs/d"].dtype == FLOAT
    assert (found["obs/d"].recorded, found["obs/s"].recorded) == (np.uint16, np.float64)
    assert (found["obs/i"].step_bytes, found["obs/d"].step_bytes) == (48, 64)
    assert found["obs/n"].step_bytes == 4


@pytest.mark.parametrize(
    ("end", "arrays", "key", "values"),
    [
        ("terminal", {}, "timeouts", [0, 0, 0]),
        ("timeout", {}, "timeouts", [0, 0, 1]),
        ("terminal", {"timeouts": None}, "timeouts", [0, 0, 0]),
        (None, {"timeouts": None}, "timeouts", [0, 0, 1]),
        ("terminal", {"terminals": None}, "terminals", [0, 0, 1]),  # dones take their place
        ("terminal", {"dones": None}, "dones", [0, 0, 1]),
        ("terminal", {"dones": None, "terminals": None}, "dones", [0, 0, 0]),
        (None, {"rewards": None}, "rewards", [0, 0, 0]),
        (None, {"rewards": np.array([[1], [2], [3]])}, "rewards", [1, 2, 3]),
        (None, {}, "interventions", [1, 1, 1]),
        (None, {"interventions": np.array([0, 1, 0])}, "interventions", [0, 1, 0]),
    ],
)
def test_scalars_are_read_or_derived(opened, end, arrays, key, values):
    file = opened(end=end, **arrays)
    assert read(file, key) == values
    assert read(file, key, 0, 2) == values[:2]
    assert read(file, key, 2, 3) == values[2:]


def test_two_numbers_per_step_are_no_scalar(opened):
    file = opened(rewards=np.zeros((3, 2)))
    with pytest.raises(DatasetError, match=r"'rewards' has shape \(3, 2\): expected \(T,\)"):
        read(file, "rewards")
    assert scalar_source(file, "demo_0", "rewards") == "rewards"
    assert scalar_source(file, "demo_0", "interventions") is None


def test_pieces(opened, monkeypatch):
    file = opened()
    monkeypatch.setattr(fields, "_PIECE_BYTES", 16)  # two steps of two float32
    field = Field("obs/s", (2,), slice(0, 2), FLOAT, np.dtype(np.float64))
    pieces = [(at, v.tolist()) for at, v in read_pieces(file, "demo_0", 3, field)]
    assert pieces == [(0, [[0, 1], [2, 3]]), (2, [[4, 5]])]
    monkeypatch.setattr(fields, "_PIECE_BYTES", 1)
    assert [at for at, _ in read_pieces(file, "demo_0", 3, field)] == [0, 1, 2]
    (_, values), *_ = read_pieces(file, "demo_0", 3, field)
    assert values.dtype == FLOAT and values.flags.c_contiguous


def test_pieces_have_four_megabytes(opened):
    for width, steps in ((2**19, [0, 2]), (2**19 + 1, [0, 1, 2])):
        file = opened(obs__large=np.zeros((3, width), np.uint8))
        field = Field("obs/large", (width,), None, FLOAT, np.dtype(np.uint8))
        assert [at for at, _ in read_pieces(file, "demo_0", 3, field)] == steps
    assert Field("k", (), None, FLOAT).recorded == np.float32


@pytest.mark.parametrize("value", [np.nan, 1e39])
def test_values_beyond_float32_are_refused(opened, value):
    file = opened(obs__s=np.array([[0, 1], [2, value], [4, 5]]))
    field = Field("obs/s", (2,), slice(0, 2), FLOAT, np.dtype(np.float64))
    with pytest.raises(DatasetError, match="obs/s"):
        list(read_pieces(file, "demo_0", 3, field))


def clock(start, step, count=20, dtype=np.float64):
    return (start + step * np.arange(count)).astype(dtype)[:, None]


@pytest.mark.parametrize(
    ("values", "lost"),
    [
        (clock(1e9, 1.0), True),  # neighbours are 64 apart
        (clock(-1e9, -1.0), True),
        (clock(1e9, 64.0), False),
        (clock(1e9, 0.0), False),  # at rest
        (np.array([1e9, *[1e9 + 64] * 9])[:, None], False),  # one change
        (np.array([1e9, 1e9 + 64] * 5)[:, None], False),  # to and fro
        (clock(8191.0, 1e-5), False),
        (clock(8192.0, 1e-5), True),
        (clock(2**30, 1, dtype=np.int32), True),
        (clock(1e9, 1.0, dtype=np.float32), False),  # recorded so
        (clock(60_000, 1, dtype=np.uint16), False),
        (clock(1e9, 1.0, 0), False),
    ],
)
def test_changes_that_float32_would_lose(opened, values, lost):
    file = opened()
    if not lost:
        check_narrowing(values, values.astype(np.float32), file, "demo_0", "k")
        return
    near = f"{values[0, 0]:.10g}"
    with pytest.raises(DatasetError, match=rf"demo_0': 'k' is {values.dtype} near {near}, but"):
        check_narrowing(values, values.astype(np.float32), file, "demo_0", "k")
    two = np.concatenate([np.zeros_like(values), values], axis=1)
    with pytest.raises(DatasetError, match="number 1 of 'k'"):
        check_narrowing(two, two.astype(np.float32), file, "demo_0", "k")


@pytest.mark.parametrize(
    ("changes", "count", "lost"), [(10, 1, False), (10, 2, True), (9, 1, True), (11, 1, False)]
)
def test_a_tenth_of_the_changes_may_be_lost(opened, changes, count, lost):
    values = np.cumsum([1e9, *[1000.0] * (changes - count), *[1.0] * count])[:, None]
    file = opened()
    if lost:
        with pytest.raises(DatasetError, match="changes are lost"):
            check_narrowing(values, values.astype(np.float32), file, "demo_0", "k")
    else:
        check_narrowing(values, values.astype(np.float32), file, "demo_0", "k")


def test_keys_that_are_missing(opened):
    file = opened(action_dict__rel=np.zeros((3, 1)), signals__cost=np.zeros(3))
    for key in ("actions", "rewards", "interventions", "signals/cost"):
        check_step_key(file, "demo_0", key)
    with pytest.raises(DatasetError, match="has no 'action'; did you mean 'actions'"):
        check_step_key(file, "demo_0", "action")
    with pytest.raises(DatasetError, match="did you mean 'action_dict/rel'"):
        check_step_key(file, "demo_0", "action_dict/re")
    with pytest.raises(DatasetError, match=r"'signals/risk'.*\(it has: cost\).*--signals risk"):
        check_step_key(file, "demo_0", "signals/risk")
    assert "(it has: none)" in str(lacks_signal(opened(), "demo_0", "signals/risk"))


def test_an_observation_without_numbers_loses_none(tmp_path):
    demos = [episode(3, {"none": np.zeros((3, 0))}, np.zeros((3, 1)))]
    with DatasetFile(write_demos(tmp_path / "a.hdf5", demos, strict=False)) as file:
        empty = np.zeros((3, 0))
        check_narrowing(empty, empty.astype(np.float32), file, "demo_0", "none")
