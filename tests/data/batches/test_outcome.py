"""Outcome of the demo of each sample, and a later state of it."""

import numpy as np
import pytest
import torch

from imitate.config.data_needs import Outcome
from imitate.data.batches.rewards import demo_outcomes
from imitate.data.batches.store import DataSource, Store
from imitate.data.shards.data_files import DataFiles
from tests.demo_files import episode, write_demos


class Window:
    """Windows of samples: their demos, and the last row of each."""

    def __init__(self, demo, last):
        self.demo, self.last = np.array(demo), np.array(last)[:, None]


class Read:
    """Reads the number of a row as its observation."""

    def observations(self, rows):
        return {"s": torch.from_numpy(rows.astype(np.float32))}


@pytest.fixture
def outcome(tmp_path):
    """Rows 0 to 2 fail, 3 and 4 succeed, 5 is a demo without a word, all in two files; row 1 was corrected."""
    corrected = {"interventions": np.array([0, 1, 0], np.uint8)}
    demos = [
        episode(3, {"s": np.zeros((3, 1))}, attrs={"success": False}, steps=corrected),
        episode(
            2,
            {"s": np.zeros((2, 1))},
            attrs={"success": True},
            steps={"interventions": np.zeros(2, np.uint8)},
        ),
    ]
    sources = [
        DataSource(write_demos(tmp_path / "a.hdf5", demos)),
        DataSource(write_demos(tmp_path / "b.hdf5", [episode(1, {"s": np.zeros((1, 1))})])),
    ]

    def batch(now, demo, last, lookahead=None):
        with DataFiles() as files:
            store = Store(sources, ("actions",), files=files)
            made = demo_outcomes(Outcome(lookahead), sources, store, files)
            found = {"actions": torch.zeros(len(now), 1)}
            made.add_to(found, np.array(now), Window(demo, last), Read())
            return found

    return batch


def test_steps_left_success_and_corrections(outcome):
    found = outcome([0, 1, 2, 4, 5], [0, 0, 0, 1, 2], [2, 2, 2, 4, 5])["outcome"]
    assert found.dtype == torch.float32
    assert found.tolist() == [[2, 0, 0], [1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 1, 0]]


def test_a_later_state_stops_at_the_demos_end(outcome):
    assert "later_obs" not in outcome([0], [0], [2])
    assert outcome([0, 1, 3], [0, 0, 1], [2, 2, 4], 2)["later_obs"]["s"].tolist() == [2, 2, 4]
    assert outcome([0, 1], [0, 0], [2, 2], 0)["later_obs"]["s"].tolist() == [0, 1]


def test_nothing_is_read_where_nothing_is_wanted():
    assert demo_outcomes(None, [], None, None) is None
