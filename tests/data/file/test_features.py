"""Original names of a dataset's arrays and of their numbers."""

from types import SimpleNamespace

import pytest

from imitate.data.file.features import (
    FEATURES,
    as_attribute,
    dimension_names,
    dimension_words,
    features_of,
    names_in,
    number_names,
    without_other_names,
)
from imitate.errors import DatasetError

ARM = {"feature": "observation.state", "shape": [2], "names": ["a", "b"]}


@pytest.mark.parametrize(("letter", "bytes_of"), [("a", 1), ("é", 6)])
def test_an_attribute_is_at_most_as_large_as_hdf5_allows(letter, bytes_of):
    room = (60_000 - len('{"x": {"feature": ""}}')) // bytes_of
    for more, fits in ((0, True), (1, False)):
        found = as_attribute({"x": {"feature": letter * (room + more)}})
        assert (found is not None) == fits


@pytest.mark.parametrize(
    "text",
    [
        *("{", "[]", '{"a": 1}', '{"a": {}}', '{"a": {"feature": 1}}', 5, "[" * 100_000),
        '{"a": {"feature": "x"}, "b": {}}',
    ],
)
def test_other_attributes_are_refused(text):
    with pytest.raises(DatasetError, match="F: the attribute 'features' .* is not a JSON object"):
        features_of({FEATURES: text}, "F")


def test_entries():
    assert features_of({}, "F") == {}
    assert features_of({FEATURES: as_attribute({"obs/s": ARM})}, "F") == {"obs/s": ARM}


@pytest.mark.parametrize(
    ("names", "flat"),
    [
        (None, []),
        ("ab", []),
        (["a", 1], ["a", "1"]),
        ([["a"], ["b", "c"]], ["a", "b", "c"]),
        ({"motors": ["a", "b"], "units": "deg"}, ["a", "b"]),
        ({"x": 1}, []),
    ],
)
def test_names_of_numbers_are_flat(names, flat):
    assert dimension_names(names) == flat


def test_names_count_only_for_vectors_of_their_length():
    entries = {
        "obs/s": ARM,
        "actions": {"names": ["x"], "shape": (1,)},
        "obs/longer": {"names": ["x"], "shape": [2]},
        "obs/image": {"names": ["h", "w"], "shape": [2, 2]},
        "obs/none": {"shape": [2]},
        "obs/shapeless": {"names": ["x"]},
    }
    assert number_names(entries) == {"s": ["a", "b"], "actions": ["x"]}


def test_names_that_not_all_files_have_are_left_out():
    other = {**ARM, "names": ["b", "a"]}
    assert without_other_names({"obs/s": ARM}, []) == {"obs/s": ARM}
    assert without_other_names({"obs/s": ARM}, [{"obs/s": ARM}]) == {"obs/s": ARM}
    for others in ([{"obs/s": other}], [{"obs/s": ARM}, {"obs/s": other}], [{}]):
        assert without_other_names({"obs/s": ARM}, others) == {"obs/s": {**ARM, "names": None}}


def test_names_in_a_file():
    entries = {"obs/s": ARM, "actions": {**ARM, "names": None}, "obs/t": {"feature": "t"}}
    file = SimpleNamespace(file_attrs={FEATURES: as_attribute(entries)}, path="F")
    assert names_in(file) == {"obs/s": ["a", "b"]}
    for attrs in ({}, {FEATURES: "{"}):
        assert names_in(SimpleNamespace(file_attrs=attrs, path="F")) == {}


def test_dimensions_in_words():
    assert dimension_words([0, 2], ["a", "b"]) == "0 (a), 2"
    assert dimension_words(range(10), None) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert dimension_words(range(3), None, most=2) == "0, 1 ..."
    assert dimension_words(range(11), None).endswith("9 ...")
