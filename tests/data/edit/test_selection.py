"""Selection of demos by number, name, length, return and success."""

import h5py
import numpy as np
import pytest

from imitate.data import DatasetFile
from imitate.data.edit.selection import Selection, select
from imitate.data.file.hdf5_format import outcomes
from imitate.errors import DatasetError
from tests.demo_files import episode, write_demos


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """demo_0 to demo_4 of 1 to 5 steps with a reward of 1 in each; the first two have succeeded."""
    path = tmp_path_factory.mktemp("selection") / "a.hdf5"
    episodes = [
        episode(n, {"s": np.zeros((n, 1))}, rewards=np.ones(n), attrs={"success": n < 3})
        for n in range(1, 6)
    ]
    with DatasetFile(write_demos(path, episodes, filter_keys={"odd": [1, 3]})) as opened:
        yield opened


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"filter_key": "odd"}, [1, 3]),
        ({"demos": ["demo_1-demo_3"]}, [1, 2, 3]),
        ({"demos": ["demo_4", "demo_0"]}, [0, 4]),
        ({"without": ["demo_1-demo_3"]}, [0, 4]),
        ({"success": True}, [0, 1]),
        ({"success": False}, [2, 3, 4]),
        ({"min_length": 3}, [2, 3, 4]),
        ({"max_length": 3}, [0, 1, 2]),
        ({"min_length": 2, "max_length": 3}, [1, 2]),
        ({"min_return": 3.0}, [2, 3, 4]),
        ({"max_return": 3.0}, [0, 1, 2]),
        ({"min_length": 2, "max_return": 3.0}, [1, 2]),
        ({"first": 2}, [0, 1]),
        ({"first": 5, "seed": 0}, [0, 1, 2, 3, 4]),
        ({"first": 9}, [0, 1, 2, 3, 4]),
        ({"first": 9, "seed": 1}, [0, 1, 2, 3, 4]),
        ({"first": 0}, []),
        ({"filter_key": "odd", "demos": ["demo_0-demo_2"], "first": 1}, [1]),
    ],
)
def test_selected(file, wanted, numbers):
    assert select(file, Selection(**wanted)) == [f"demo_{n}" for n in numbers]


def test_a_random_selection_depends_on_the_seed_and_is_in_order(file):
    drawn = [select(file, Selection(first=3, seed=seed)) for seed in range(6)]
    assert drawn[0] == select(file, Selection(first=3, seed=0))
    assert all(len(names) == 3 and names == sorted(names) for names in drawn)
    assert len(set(map(tuple, drawn))) > 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("demo_9", "there is no demo 'demo_9'; did you mean"),
        ("3", "; --first 3 takes the first 3"),
        ("demo_1-demo_9", "no demo 'demo_9'"),
        ("demo_1-demo_2-demo_3", "no demo 'demo_2-demo_3'"),
    ],
)
def test_a_demo_that_does_not_exist(file, name, words):
    with pytest.raises(DatasetError, match=words) as raised:
        select(file, Selection(demos=[name]))
    assert ("--first" in str(raised.value)) == name.isdecimal()


def attributes(success):
    return {} if success is None else {"success": success}


@pytest.mark.parametrize(
    ("rewards", "said", "found"),
    [
        ([[0, 1], [0, 0]], [None, None], [True, False]),
        ([[1, 0], [0, 0]], [None, None], [True, False]),
        ([[0, 0], [0, 0]], [None, None], [None, None]),  # a recording without rewards
        ([[0, 1], [0, 0.5]], [None, None], [None, None]),  # a dense reward
        ([[0, 2], [0, 1]], [None, None], [None, None]),
        ([[0, 1], [0, 0]], [False, None], [False, None]),
        ([[0, 0], [0, 1]], [False, None], [False, True]),
        ([[0, 1], [0, 1]], [False, False], [False, False]),
    ],
)
def test_outcomes_are_said_or_follow_from_rewards_of_0_and_1(tmp_path, rewards, said, found):
    episodes = [
        episode(2, {"s": np.zeros((2, 1))}, rewards=np.array(row, float), attrs=attrs)
        for row, attrs in zip(rewards, map(attributes, said), strict=True)
    ]
    with DatasetFile(write_demos(tmp_path / "a.hdf5", episodes)) as opened:
        names = ["demo_0", "demo_1"]
        assert outcomes(opened, names) == dict(zip(names, found, strict=True))
        if None in found:
            with pytest.raises(DatasetError, match="demo_[01]' has neither"):
                select(opened, Selection(success=True))


def test_a_demo_without_rewards_and_words_is_unknown(tmp_path):
    episodes = [episode(2, {"s": np.zeros((2, 1))}, rewards=np.array([0.0, 1.0]))] * 2
    path = write_demos(tmp_path / "a.hdf5", episodes)
    with h5py.File(path, "r+") as changed:
        del changed["data/demo_1/rewards"]
    with DatasetFile(path) as opened:
        assert outcomes(opened, ["demo_0", "demo_1"]) == {"demo_0": None, "demo_1": None}
        assert outcomes(opened, ["demo_0"]) == {"demo_0": True}
        assert outcomes(opened, []) == {}
