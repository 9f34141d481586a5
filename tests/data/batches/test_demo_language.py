"""Language instruction of each demo, as a number and as a vector in batches."""

import h5py
import numpy as np
import pytest
import torch

from imitate.data.batches.demo_language import DemoLanguage, holds_language, instructions_in
from imitate.data.batches.file_rows import DemoOrigin
from imitate.data.batches.store import DataSource
from imitate.data.shards.data_files import DataFiles
from imitate.errors import DatasetError
from imitate.system.instructions import LANGUAGE_KEY, Instructions
from tests.demo_files import episode, write_demos

ORIGINS = [DemoOrigin(0, "demo_0", 2), DemoOrigin(0, "demo_1", 2), DemoOrigin(0, "demo_2", 2)]


@pytest.fixture
def source(tmp_path):
    """A file whose demos have the instructions "b", none, and "a"."""

    def make(words=("b", None, "a"), **how):
        demos = [
            episode(2, {"s": np.zeros((2, 1))}, attrs={} if word is None else {"language": word})
            for word in words
        ]
        return DataSource(write_demos(tmp_path / "a.hdf5", demos, filter_keys={"m": [1, 2]}), **how)

    return make


def language(source, table=None, wanted=False):
    with DataFiles() as files:
        return DemoLanguage([source], ORIGINS, table, wanted, files)


def batch(made, demos, steps=2):
    found = {"obs": {}, "next_obs": {}, "actions": None}
    made.add_to(found, np.array(demos), steps)
    return found


def test_numbers_of_the_sorted_instructions(source):
    made = language(source())
    assert made.instructions.names == ("a", "b")
    found = batch(made, [2, 0, 1, 2])
    assert found["task_id"].tolist() == [0, 1, -1, 0]
    assert found["obs"] == {} and found["next_obs"] == {}


def test_without_any_instruction_there_is_no_number(source):
    assert "task_id" not in batch(language(source([None] * 3)), [0])


def test_vectors_of_the_instructions_at_each_step(source):
    table = Instructions(("a", "b"), np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))
    made = language(source("bba"), table, wanted=True)
    made.to("cpu")
    found = batch(made, [0, 2], steps=3)
    for group in ("obs", "next_obs"):
        assert found[group][LANGUAGE_KEY].tolist() == [[[3, 4]] * 3, [[1, 2]] * 3]
    assert found["task_id"].tolist() == [1, 0]
    only = {"obs": {}}
    made.add_to(only, np.array([0]), 1)
    assert torch.equal(only["obs"][LANGUAGE_KEY], torch.tensor([[[3.0, 4.0]]]))
    assert LANGUAGE_KEY not in batch(language(source("bba"), table), [0])["obs"]


def test_vectors_are_not_normalized(source):
    stats = language(source()).statistics()
    assert stats.mean.tolist() == [0, 0] and stats.std.tolist() == [1, 1]
    assert stats.min.tolist() == [-1, -1] and stats.max.tolist() == [1, 1]
    for level, values in stats.quantiles.items():
        assert values.tolist() == ([1, 1] if level > 0.5 else [-1, -1])


@pytest.mark.parametrize(
    ("words", "table", "message"),
    [
        (("b", None, "a"), None, "demo 'demo_1' has no instruction, which the observation"),
        ("bab", "b", r"demo 'demo_1': instruction 'a' is not known \(known: 'b'\)"),
        ("xbb", "bcdef", r"'x' is not known \(known: 'b'; 'c'; 'd'; 'e'; 'f'\)"),
        ("xbb", "bcdefg", r"\(known: 'b'; 'c'; 'd'; 'e'; 'f' \.\.\.\)"),
    ],
)
def test_a_wanted_instruction_is_known(source, words, table, message):
    table = None if table is None else Instructions.one_hot(table)
    with pytest.raises(DatasetError, match=message):
        language(source(words), table, wanted=True)
    assert batch(language(source(words), table), [0, 1, 2])["task_id"].min() == -1


def test_the_instruction_of_a_whole_file_comes_first(source):
    made = language(source(lang="all"))
    assert made.instructions.names == ("all",) and batch(made, [1])["task_id"].tolist() == [0]
    with DataFiles() as files:
        assert instructions_in([source(lang="all")], files) == {"all"}


@pytest.mark.parametrize(
    ("how", "found"),
    [({}, {"a", "b"}), ({"filter_key": "m"}, {"a"}), ({"demo_limit": 2}, {"b"})],
)
def test_instructions_of_the_selected_demos(source, how, found):
    with DataFiles() as files:
        assert instructions_in([source(**how)], files) == found


def test_a_file_may_hold_vectors_of_its_own(source):
    made = source()
    with DataFiles() as files:
        assert not holds_language([made], files)
    with h5py.File(made.path, "r+") as file:
        file[f"data/demo_0/obs/{LANGUAGE_KEY}"] = np.zeros((2, 3))
    with DataFiles() as files:
        assert holds_language([made], files)
        assert not holds_language([made, DataSource(made.path, filter_key="m")], files)


def test_embeddings_are_moved_if_there_are_any(source):
    made = language(source(), table=None, wanted=False)
    made.to("meta")
    table = Instructions(("a", "b"), np.eye(2, dtype=np.float32))
    made = language(source(("b", "a", "a")), table, True)
    made.to("meta")
    assert batch(made, [0, 1])["obs"][LANGUAGE_KEY].device.type == "meta"


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        (
            "language_instruction",
            True,
            ".*its array 'language_instruction', which imitate does not read$",
        ),
        ("obs/task", True, ".*its array 'obs/task', which"),
        ("prompt", False, ".*its attribute 'prompt', which"),
        ("note", True, "$"),
        ("task", None, "$"),
    ],
)
def test_the_place_of_an_instruction_that_is_not_read_is_named(source, name, array, words):
    made = source([None] * 3)
    with h5py.File(made.path, "r+") as file:
        demo = file["data/demo_0"]
        if array is False:
            demo.attrs[name] = "open"
        else:
            demo[name] = [b"open", b"open"] if array else [1, 1]
    with pytest.raises(DatasetError, match=f"set lang .* attribute language of each demo{words}"):
        language(made, wanted=True)
