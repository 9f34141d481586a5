"""Scale of rescaled actions: read, applied, refused."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.file.action_scale import (
    MODE,
    OFFSET,
    SCALE,
    ActionScale,
    recorded_scale,
    refuse_rescaled,
)
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos


@pytest.fixture
def scaled(tmp_path):
    """Opens a file with these attributes."""

    def make(attrs):
        path = write_demos(tmp_path / "a.hdf5", [episode(2, {"s": np.zeros((2, 1))})])
        with h5py.File(path, "r+") as file:
            file["data"].attrs.update(attrs)
        return DatasetFile(path)

    return make


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_commands_and_actions_by_hand(dtype):
    made = ActionScale(np.array([1.0, -1.0]), np.array([2.0, 4.0]), "min_max")
    commands, actions = np.array([[5.0, 7.0]], dtype), np.array([[2.0, 2.0]], dtype)
    np.testing.assert_array_equal(made.from_commands(commands), actions)
    np.testing.assert_array_equal(made.to_commands(actions), commands)
    assert made.from_commands(commands).dtype == made.to_commands(actions).dtype == dtype
    assert made.from_commands(np.array([[5, 7]])).dtype == np.float32


def test_a_recorded_scale(scaled):
    with scaled({OFFSET: [0.5, 1.0], SCALE: [1.0, 2.0]}) as file:
        found = recorded_scale(file)
        assert (found.offset.tolist(), found.scale.tolist()) == ([0.5, 1.0], [1.0, 2.0])
        assert found.mode == "unnamed"
        assert found.attributes() == {OFFSET: found.offset, SCALE: found.scale, MODE: "unnamed"}
        with pytest.raises(DatasetError, match=r"actions are rescaled \(unnamed\)"):
            refuse_rescaled(file)
    with scaled({OFFSET: 0.5, SCALE: 2.0, MODE: "min_max"}) as file:
        assert recorded_scale(file).scale.tolist() == [2.0]
        assert recorded_scale(file).mode == "min_max"


def test_commands_have_no_scale(scaled):
    with scaled({MODE: "x"}) as file:
        assert recorded_scale(file) is None
        refuse_rescaled(file)


@pytest.mark.parametrize(
    "attrs",
    [
        {OFFSET: [1.0]},
        {SCALE: [1.0]},
        {OFFSET: [1.0], SCALE: [1.0, 2.0]},
        {OFFSET: [[1.0]], SCALE: [[1.0]]},
        {OFFSET: [], SCALE: []},
        {OFFSET: [np.nan], SCALE: [1.0]},
        {OFFSET: [1.0], SCALE: [np.inf]},
        {OFFSET: [1.0, 1.0], SCALE: [1.0, 0.0]},
        {OFFSET: "a", SCALE: [1.0]},
    ],
)
def test_attributes_that_are_no_scale(scaled, attrs):
    with scaled(attrs) as file, pytest.raises(DatasetError, match="not two lists of equal length"):
        recorded_scale(file)
