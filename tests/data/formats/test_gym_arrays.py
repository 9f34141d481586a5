"""Arrays of gymnasium: names and layouts of single observations, and the range of indices of actions."""

import numpy as np
import pytest

from imitate.data.formats.base import ConversionReport
from imitate.data.formats.gym_arrays import choices_of, named_obs, one_hot
from imitate.errors import DatasetError


@pytest.mark.parametrize(
    ("shape", "name", "change"),
    [
        ((2, 16, 16, 3), "image", None),
        ((2, 3, 16, 16), "image", "channels first -> (T, H, W, C)"),
        ((2, 16, 16), "image", "(T, H, W) -> (T, H, W, 1)"),
        ((2, 4), "flat", None),
    ],
)
def test_the_report_names_what_became_of_an_observation(shape, name, change):
    report = ConversionReport()
    found, values = named_obs(np.zeros(shape, np.uint8), "observation", report)
    assert found == name
    assert values.shape[:3] == ((2, 16, 16) if name == "image" else (2, 4))
    assert report.renamed == {"observation": f"obs/{name}"}
    assert report.changed == ({"obs/image": change} if change else {})


def test_a_table_per_step_is_one_row():
    _, values = named_obs(np.arange(12.0).reshape(2, 2, 3), "o", ConversionReport())
    np.testing.assert_array_equal(values, np.arange(12.0).reshape(2, 6))


@pytest.mark.parametrize(
    ("actions", "choices"),
    [([0, 2], 3), ([0], 1), ([9_999], 10_000), ([], None), ([[0, 1]], None), ([0.0], None)],
)
def test_the_number_of_choices(actions, choices):
    kind = np.int64 if not actions else None
    assert choices_of(np.asarray(actions, kind), "actions") == choices


@pytest.mark.parametrize("actions", [[10_000], [-1, 0]])
def test_numbers_that_are_no_indices_are_refused(actions):
    with pytest.raises(DatasetError, match="not indices of actions"):
        choices_of(np.array(actions), "actions")


def test_one_hot_rows():
    np.testing.assert_array_equal(one_hot(np.array([[2], [0]]), 3), [[0, 0, 1], [1, 0, 0]])
    assert one_hot(np.array([9_999]), 10_000).sum() == 1
    assert one_hot(np.zeros(0, np.int64), 3).shape == (0, 3)


@pytest.mark.parametrize(("index", "choices"), [([-1, 1], 3), ([0, 3], 3), ([0], 10_001)])
def test_an_index_out_of_range_is_refused(index, choices):
    with pytest.raises(DatasetError, match=rf"{min(index)} to {max(index)} of {choices} choices"):
        one_hot(np.array(index), choices)
